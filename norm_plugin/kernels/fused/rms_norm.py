"""RMSNorm: divided by the root mean square and multiplied with gamma in one pass."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.rms_norm import RMSNorm


@fuses(RMSNorm)
def rms_norm(norm: RMSNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """gamma * x / rms. x, y: (N, C)."""
    return row_norm(x, ops, RowRule(norm.eps, center=False), norm.gain())
