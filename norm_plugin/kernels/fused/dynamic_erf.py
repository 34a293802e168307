"""Derf: erf and the affine map in one pass."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.pointwise import pointwise
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.dynamic_erf import DynamicErf


@fuses(DynamicErf)
def dynamic_erf(norm: DynamicErf, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * erf(alpha x + s) + beta. x, y: (N, C)."""
    return pointwise(x, ops, "erf", norm.alpha, norm.weight, norm.bias, norm.shift)
