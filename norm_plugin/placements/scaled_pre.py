"""LayerNorm Scaling: x + f(norm(x) / sqrt(l)), and a norm after the stack.

l is the number of the layer in its stack, from 1. Source: Sun et al. 2025, "The Curse of Depth in
Large Language Models", arXiv 2502.05795. The paper was not read for this file.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.placements.base import INPUT, Placement, register_placement


@register_placement(
    "scaled-pre",
    equation="x + f(norm(x) / sqrt(l))",
    paper="Sun et al. 2025, The Curse of Depth",
    paper_read=False,
)
class ScaledPre(Placement):
    """Pre-norm, whose branches see smaller inputs in deeper layers."""

    norms = (INPUT,)
    final_norm = True

    def enter(self, y: Tensor, branch: str) -> Tensor:
        return y / self.place.index**0.5
