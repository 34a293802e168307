"""The autograd function of all fused forms, and what it does with the parameters of a norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.cpu import loading as cpu
from norm_plugin.kernels.passes import statistics_dtype

Gradients = tuple[Tensor | None, ...]
"""The gradients of x and of each parameter."""


class Passes:
    """The forward and the backward pass of a norm over one input, with the state between them.

    x, y, dy: (..., C), contiguous. Parameters are contiguous, in the dtype of statistics of x, and
    None where a norm has none.
    """

    def forward(self, x: Tensor, *parameters: Any) -> Tensor:
        """Return y, and update the running statistics."""
        raise NotImplementedError

    def backward(self, dy: Tensor, x: Tensor, *parameters: Any) -> Gradients:
        """Return the gradients of x and of each parameter; update what gradients update."""
        raise NotImplementedError

    def refuse_backward(self) -> None:
        """Raise RuntimeError; autograd calls this in place of a ``backward`` that is not here."""
        raise RuntimeError(
            "a fused norm has no second derivative (create_graph=True), and no gradients of "
            "several outputs at once (is_grads_batched, jacobian(vectorize=True)). The plain "
            "form has, except powernorm after its warm-up, unified and mabn, whose backward pass "
            "is hand-written: set NORM_KERNELS=off, or call "
            "norm_plugin.kernels.set_kernels(model, 'off')"
        )


class FusedNorm(torch.autograd.Function):
    """Compute y by :class:`Passes`; for the backward pass x is saved, which is a copy only if it is
    not contiguous.

    x: (..., C), of any layout; parameters: of any layout and dtype, or None.
    """

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return y."""
        x = x.contiguous()  # once for both passes
        ctx.save_for_backward(x, *parameters)
        ctx.passes = passes
        return passes.forward(x, *in_statistics_dtype(parameters, x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        """Return the gradients of x and of each parameter, which autograd converts."""
        x, *parameters = ctx.saved_tensors
        passes: Passes = ctx.passes
        if torch.is_grad_enabled() or not torch._C._has_storage(dy):
            passes.refuse_backward()
        inputs = x, *in_statistics_dtype(parameters, x)
        gradients = passes.backward(dy.contiguous(), *inputs)
        return (None, *(dp if p is not None else None for dp, p in zip(gradients, inputs)))


def fused_norm(passes: Passes, x: Tensor, *parameters: Tensor | None) -> Tensor:
    """Return y, (..., C), by ``FusedNorm``, or its equal in C++, which costs a GPU's host less."""
    native, _ = cpu.load()
    apply = FusedNorm.apply if native is None else native.fused_norm
    y: Tensor = apply(passes, x, *parameters)
    return y


def in_statistics_dtype(parameters: Iterable[Any], x: Tensor) -> list[Any]:
    """Return parameters or buffers, contiguous, in the dtype of statistics of ``x``; or None."""
    dtype = statistics_dtype(x)
    return [
        each
        if each is None or (each.dtype is dtype and each.is_contiguous())  # saves two calls
        else each.to(dtype).contiguous()
        for each in parameters
    ]
