"""DetachNorm: layernorm-simple whose gradient leaves out mu, sigma or both."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.detach_norm import DetachNorm, DetachNormMean, DetachNormStd


@fuses(DetachNorm, DetachNormMean, DetachNormStd)
def detach_norm(norm: DetachNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """(x - mu) / sigma. x, y: (N, C)."""
    rule = RowRule(norm.eps, through_mean=not norm.detach_mean, through_rstd=not norm.detach_std)
    return row_norm(x, ops, rule)
