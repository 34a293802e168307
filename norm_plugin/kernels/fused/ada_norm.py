"""AdaNorm, paper and released: standardized and multiplied with phi in one pass."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.ada_norm import AdaNorm


@fuses(AdaNorm)
def ada_norm(norm: AdaNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """sg[C (1 - k z)] z. x, y: (N, C)."""
    rule = RowRule(norm.eps, released=norm.variant == "released", phi=(norm.scale, norm.k))
    return row_norm(x, ops, rule)
