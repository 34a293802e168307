"""ScaleNorm as RMSNorm with one gain for all channels.

g x / sqrt(sum x^2 + eps) = (g / sqrt(C)) x / sqrt(mean x^2 + eps / C)
"""

from __future__ import annotations

import math

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule, statistics_dtype
from norm_plugin.norms.scale_norm import ScaleNorm


@fuses(ScaleNorm)
def scale_norm(norm: ScaleNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """g * x / length. x, y: (N, C)."""
    g = norm.g.to(statistics_dtype(x))
    gain = (g / math.sqrt(norm.dim)).expand(norm.dim)  # autograd sums its gradient
    return row_norm(x, ops, RowRule(norm.eps / norm.dim, center=False), gain)
