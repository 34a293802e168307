"""The autograd function of all fused forms, and what it does with the parameters of a norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

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


class FusedNorm(torch.autograd.Function):
    """Compute y by :class:`Passes`; for the backward pass only x is saved, and no copy of it."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *parameters: Tensor | None) -> Tensor:
        """Return y. x: (..., C); parameters: in any dtype, or None."""
        x = x if x.is_contiguous() else x.contiguous()
        ctx.save_for_backward(x, *parameters)
        ctx.passes = passes
        return passes.forward(x, *in_statistics_dtype(parameters, x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        """Return the gradients of x and of each parameter."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a fused norm has no second derivative (create_graph=True). The plain form has, "
                "except powernorm after its warm-up, unified and mabn, whose backward pass is "
                "hand-written: set NORM_KERNELS=off, or call "
                "norm_plugin.kernels.set_kernels(model, 'off')"
            )
        x, *parameters = ctx.saved_tensors
        passes: Passes = ctx.passes
        dx, *gradients = passes.backward(dy.contiguous(), x, *in_statistics_dtype(parameters, x))
        return (None, dx, *map(grad_like, gradients, parameters))


_above: Any = super(torch.autograd.Function, FusedNorm)
fused_norm: Callable[..., Tensor] = _above.apply
"""``FusedNorm.apply`` without the Python around it.

That serves ``torch.func``, whose transforms have no fused forms, and costs as much as a launch.
"""


def in_statistics_dtype(parameters: Iterable[Any], x: Tensor) -> list[Any]:
    """Return parameters or buffers, contiguous, in the dtype of statistics of ``x``; or None."""
    dtype = statistics_dtype(x)
    return [
        each
        if each is None or (each.dtype is dtype and each.is_contiguous())  # saves two calls
        else each.to(dtype).contiguous()
        for each in parameters
    ]


def grad_like(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """Return a gradient in the dtype of its parameter; None without a parameter."""
    if gradient is None or parameter is None:
        return None
    return gradient if gradient.dtype is parameter.dtype else gradient.to(parameter.dtype)
