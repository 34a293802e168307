"""DyT: tanh and the affine map in one pass."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.pointwise import pointwise
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.dynamic_tanh import DynamicTanh


@fuses(DynamicTanh)
def dynamic_tanh(norm: DynamicTanh, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * tanh(alpha x) + beta. x, y: (N, C)."""
    return pointwise(x, ops, "tanh", norm.alpha, norm.weight, norm.bias)
