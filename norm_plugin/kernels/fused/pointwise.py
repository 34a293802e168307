"""Bounded functions of each number, as one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels import operators
from norm_plugin.kernels.fused.gradients import (
    grad_like,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.dynamic_erf import DynamicErf
from norm_plugin.norms.dynamic_tanh import DynamicTanh


class Pointwise(torch.autograd.Function):
    """weight * f(slope x + shift) + bias; the backward pass computes f of its input once more."""

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
        """x: (N, C); slope: (1,); shift: (1,) or None; weight, bias: (C,)."""
        x = x.contiguous()
        by = None if shift is None else to_statistics_dtype(shift, x)
        ctx.save_for_backward(x, slope, shift, weight, bias)
        ctx.function, ctx.ops = function, ops
        return ops.pointwise_forward(
            x,
            function,
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            to_statistics_dtype(bias, x),
        )

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and of every parameter."""
        refuse_second_order()
        x, slope, shift, weight, bias = ctx.saved_tensors
        by = None if shift is None else to_statistics_dtype(shift, x)
        dx, dslope, dshift, dweight, dbias = ctx.ops.pointwise_backward(
            dy.contiguous(),
            x,
            ctx.function,
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
        )
        return (
            dx,
            grad_like(dslope, slope),
            grad_like(dshift, shift),
            grad_like(dweight, weight),
            grad_like(dbias, bias),
            None,
            None,
        )


def pointwise(
    x: Tensor,
    ops: Ops,
    function: str,
    slope: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Tensor | None = None,
) -> Tensor:
    """weight * f(slope x + shift) + bias, (N, C), with its gradients.

    Args:
        x: (N, C).
        function: ``tanh`` or ``erf``.
        slope, shift: (1,); no shift: 0.
        weight, bias: (C,).
    """
    if torch.compiler.is_compiling():
        by = None if shift is None else to_statistics_dtype(shift, x)
        every = (
            x.contiguous(),
            to_statistics_dtype(slope, x),
            by,
            to_statistics_dtype(weight, x),
            to_statistics_dtype(bias, x),
        )
        y: Tensor = operators.pointwise(*every, function)
    else:
        y = Pointwise.apply(x, slope, shift, weight, bias, function, ops)
    return y


@fuses(DynamicTanh)
def dynamic_tanh(norm: DynamicTanh, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * tanh(alpha x) + beta. x, y: (N, C)."""
    return pointwise(x, ops, "tanh", norm.alpha, norm.weight, norm.bias)


@fuses(DynamicErf)
def dynamic_erf(norm: DynamicErf, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * erf(alpha x + s) + beta. x, y: (N, C)."""
    return pointwise(x, ops, "erf", norm.alpha, norm.weight, norm.bias, norm.shift)
