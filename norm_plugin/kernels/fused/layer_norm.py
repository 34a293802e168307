"""layernorm-simple; ``layernorm`` itself stays torch's own kernel, as in stock fairseq."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.autograd.rows import row_norm
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule
from norm_plugin.norms.layer_norm import LayerNormSimple


@fuses(LayerNormSimple)
def layer_norm_simple(norm: LayerNormSimple, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """(x - mu) / sigma. x, y: (N, C)."""
    return row_norm(x, ops, RowRule(norm.eps))
