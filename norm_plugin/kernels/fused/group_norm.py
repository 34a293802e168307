"""GroupNorm: each group of channels standardized, and the affine map, in one pass."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.group_norm import GroupNorm


@fuses(GroupNorm)
def group_norm(norm: GroupNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * (x - mu_i) / sigma_i + beta. x, y: (N, C)."""
    return row_norm(x, ops, RowRule(norm.eps, groups=norm.groups), norm.weight, norm.bias)
