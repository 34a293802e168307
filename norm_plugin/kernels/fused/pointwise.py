"""Bounded functions of each value, in one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.choice import backend_of
from norm_plugin.kernels.fused.gradients import (
    Arguments,
    apply_of,
    as_rows,
    grad_like,
    own_copy,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.dynamic_erf import DynamicErf
from norm_plugin.norms.dynamic_tanh import DynamicTanh


class Pointwise(torch.autograd.Function):
    """Compute weight * f(slope x + shift) + bias; the backward pass recomputes f."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        slope: Tensor,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        function: str,
        ops: Ops,
    ) -> Tensor:
        """Return y. x: (..., C); slope: (1,); shift: (1,) or None; weight, bias: (C,)."""
        rows = as_rows(x)
        by = None if shift is None else to_statistics_dtype(shift, x)
        ctx.save_for_backward(rows, slope, shift, weight, bias)
        ctx.function, ctx.ops = function, ops
        return ops.pointwise_forward(
            rows,
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            to_statistics_dtype(bias, x),
            function,
        ).view(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of every parameter."""
        refuse_second_order()
        x, slope, shift, weight, bias = ctx.saved_tensors
        by = None if shift is None else to_statistics_dtype(shift, x)
        dx, dslope, dshift, dweight, dbias = ctx.ops.pointwise_backward(
            as_rows(dy),
            x,
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            ctx.function,
        )
        return (
            dx.view(dy.shape),
            grad_like(dslope, slope),
            grad_like(dshift, shift),
            grad_like(dweight, weight),
            grad_like(dbias, bias),
            None,
            None,
        )


apply_pointwise = apply_of(Pointwise)


def pointwise(
    x: Tensor,
    ops: Ops,
    function: str,
    slope: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Tensor | None = None,
) -> Tensor:
    """Return weight * f(slope x + shift) + bias, (..., C), with its gradients.

    Args:
        x: (..., C).
        function: ``tanh`` or ``erf``.
        slope, shift: (1,); None for shift: 0.
        weight, bias: (C,).
    """
    if torch.compiler.is_compiling():
        by = None if shift is None else to_statistics_dtype(shift, x)
        every = (
            x.reshape(-1, x.size(-1)).contiguous(),
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            to_statistics_dtype(bias, x),
        )
        y: Tensor = pointwise_operator(*every, function).view(x.shape)
    else:
        y = apply_pointwise(x, slope, shift, weight, bias, function, ops)
    return y


# --- in the graph of torch.compile; see gradients.py ---------------------------------------------


@torch.library.custom_op("norm_plugin::pointwise", mutates_args=())
def pointwise_operator(
    x: Tensor,
    slope: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    function: str,
) -> Tensor:
    """Return y of ``pointwise_forward``."""
    return backend_of(x).pointwise_forward(x, slope, shift, weight, bias, function)


@pointwise_operator.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("norm_plugin::pointwise_backward", mutates_args=())
def pointwise_backward(
    dy: Tensor, x: Tensor, slope: Tensor, shift: Tensor | None, weight: Tensor, function: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dx and the gradients of slope, shift, weight and bias of ``pointwise_backward``."""
    dx, *dparameters = backend_of(x).pointwise_backward(dy, x, slope, shift, weight, function)
    dslope, dshift, dweight, dbias = (own_copy(gradient, slope) for gradient in dparameters)
    return dx, dslope, dshift, dweight, dbias


@pointwise_backward.register_fake
def _(dy: Tensor, x: Tensor, slope: Tensor, shift: Any, weight: Tensor, function: str) -> Any:
    dslope, dweight = slope.new_empty(1), torch.empty_like(weight)
    dshift, dbias = torch.empty_like(dslope), torch.empty_like(dweight)
    return torch.empty_like(x), dslope, dshift, dweight, dbias


def _keep_pointwise(ctx: Any, inputs: Arguments, output: Tensor) -> None:
    x, slope, shift, weight, _, ctx.function = inputs
    ctx.save_for_backward(x, slope, shift, weight)


def _pointwise_gradients(ctx: Any, dy: Tensor) -> Arguments:
    x, slope, shift, weight = ctx.saved_tensors
    dx, dslope, dshift, dweight, dbias = pointwise_backward(
        dy.contiguous(), x, slope, shift, weight, ctx.function
    )
    return dx, dslope, None if shift is None else dshift, dweight, dbias, None


pointwise_operator.register_autograd(_pointwise_gradients, setup_context=_keep_pointwise)


# --- the norms ----------------------------------------------------------------------------------


@fuses(DynamicTanh)
def dynamic_tanh(norm: DynamicTanh, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * tanh(alpha x) + beta."""
    return pointwise(x, ops, "tanh", norm.alpha, norm.weight, norm.bias)


@fuses(DynamicErf)
def dynamic_erf(norm: DynamicErf, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * erf(alpha x + s) + beta."""
    return pointwise(x, ops, "erf", norm.alpha, norm.weight, norm.bias, norm.shift)
