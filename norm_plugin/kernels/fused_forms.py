"""Fused forms of norms: how they are declared, attached to a norm, and called.

A fused form computes what its norm's ``normalize`` does, and updates the same statistics, in fewer
passes over memory; for the backward pass it saves its input and small statistics but no normalized
copy. Inputs that it does not support are left to the plain form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from norm_plugin.kernels import choice as choices
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms import Norm
from norm_plugin.norms.base.contract import FusedForm

Form = Callable[[Any, Tensor, Tensor | None, Ops], Tensor | None]
"""Computes y from a norm, x, (..., C), its real positions, (...) or None, and a backend; returns
None if the norm has no fused form in this state."""

_FORMS: dict[type[Norm], Form] = {}


def fuses(*classes: type[Norm]) -> Callable[[Form], Form]:
    """Decorator: the function is the fused form of these norms, but not of their subclasses."""

    def register(form: Form) -> Form:
        for cls in classes:
            _FORMS[cls] = form
        return form

    return register


def has_fused_form(cls: type[Norm]) -> bool:
    """Return whether norms of ``cls`` have a fused form."""
    return cls in _FORMS


PLAIN = (Tensor, nn.Parameter)
"""The types of tensors that kernels read. Others, as DTensor, FakeTensor and subclasses of a user,
may have no memory of their own, or more to do than compute values."""


def is_plain(norm: Norm, x: Tensor) -> bool:
    """Return whether x and the norm's own parameters are tensors that kernels read."""
    tensors = (x, *norm._parameters.values())
    return all(tensor is None or type(tensor) in PLAIN for tensor in tensors)


class Fused:
    """The value of ``Norm.fused``: a form and the choice of kernels for it."""

    def __init__(self, form: Form, choice: str) -> None:
        self.form, self.choice = form, choice

    def __call__(self, norm: Norm, x: Tensor, valid: Tensor | None) -> Tensor | None:
        """Apply ``norm`` to x, (..., C); None if the plain form must compute it."""
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return None  # a compiler fuses the plain form; a trace would store results as constants
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return None  # the passes support neither torch.func nor forward-mode derivatives
        if not is_plain(norm, x):
            return None
        ops, dtype = choices.select_backend(self.choice, x.dtype, x.device, norm.dim)
        if ops is None:
            return None
        if x.dtype is dtype:
            return self.form(norm, x, valid, ops)
        y = self.form(norm, x.to(dtype), valid, ops)
        return None if y is None else y.to(x.dtype)


_COMPILED: dict[type[Norm], Any] = {}


def _compiled(norm: Norm, x: Tensor, valid: Tensor | None) -> Tensor:
    """Compute ``norm`` by torch.compile of its class; torch bounds how often it recompiles."""
    cls = type(norm)
    if cls not in _COMPILED:
        _COMPILED[cls] = torch.compile(cls.normalize, dynamic=True)
    upcast = x.float() if x.dtype in choices.HALF else x
    y: Tensor = _COMPILED[cls](norm, upcast, None)
    return y.to(x.dtype)


def _fused_form(norm: Norm, choice: str) -> FusedForm | None:
    """Return the form of ``norm`` for a resolved ``choice``; None: plain torch."""
    if choice == choices.COMPILE:
        # Running statistics are no part of a graph, and a norm with its own forward uses no form
        own_forward = type(norm).forward is not Norm.forward
        return None if norm.batch_statistics or own_forward else _compiled
    if choice != choices.OFF and type(norm) in _FORMS:
        return Fused(_FORMS[type(norm)], choice)
    return None


def set_kernels(module: nn.Module, choice: str | None) -> None:
    """Let every norm in ``module`` compute by ``choice``, at any time.

    Args:
        choice: ``auto``, ``off``, ``cpu``, ``triton`` or ``compile``; None: ``auto``. The
            environment variable NORM_KERNELS overrides it.

    Raises:
        ValueError: an unknown value, or kernels that this machine does not have.
    """
    resolved = choices.resolve(choice)
    for part in module.modules():
        if isinstance(part, Norm):
            part.fused = _fused_form(part, resolved)
