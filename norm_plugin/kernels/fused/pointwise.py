"""Bounded functions of each value, in one pass forward and one backward."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.fused.function import Gradients, Passes, fused_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.dynamic_tanh import DynamicErf, DynamicTanh


class Pointwise(Passes):
    """Compute weight * f(slope x + shift) + bias; the backward pass recomputes f.

    The parameters are slope, (1,), shift, (1,) or None for 0, weight and bias, (C,).

    Args:
        function: ``tanh`` or ``erf``.
    """

    def __init__(self, ops: Ops, function: str) -> None:
        self.ops, self.function = ops, function

    def forward(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        y: Tensor = self.ops.pointwise_forward(x, *parameters, self.function)
        return y

    def backward(self, dy: Tensor, x: Tensor, *parameters: Tensor | None) -> Gradients:
        slope, shift, weight, _ = parameters
        gradients: Gradients = self.ops.pointwise_backward(
            dy, x, slope, shift, weight, self.function
        )
        return gradients


@fuses(DynamicTanh)
def dynamic_tanh(norm: DynamicTanh, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * tanh(alpha x) + beta."""
    return fused_norm(Pointwise(ops, "tanh"), x, norm.alpha, None, norm.weight, norm.bias)


@fuses(DynamicErf)
def dynamic_erf(norm: DynamicErf, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * erf(alpha x + s) + beta."""
    return fused_norm(Pointwise(ops, "erf"), x, norm.alpha, norm.shift, norm.weight, norm.bias)
