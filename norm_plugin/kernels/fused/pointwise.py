"""Bounded functions of each value, in one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.fused.gradients import (
    apply_of,
    as_rows,
    grad_like,
    in_shape,
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
        y = ops.pointwise_forward(
            rows,
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            to_statistics_dtype(bias, x),
            function,
        )
        return in_shape(y, x.shape)

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
    y: Tensor = apply_pointwise(x, slope, shift, weight, bias, function, ops)
    return y


# --- the norms ----------------------------------------------------------------------------------


@fuses(DynamicTanh)
def dynamic_tanh(norm: DynamicTanh, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * tanh(alpha x) + beta."""
    return pointwise(x, ops, "tanh", norm.alpha, norm.weight, norm.bias)


@fuses(DynamicErf)
def dynamic_erf(norm: DynamicErf, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * erf(alpha x + s) + beta."""
    return pointwise(x, ops, "erf", norm.alpha, norm.weight, norm.bias, norm.shift)
