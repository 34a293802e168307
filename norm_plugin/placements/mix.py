"""Mix-LN: the first quarter of the layers post-norm, the others pre-norm, and a norm after them.

Source: Li et al. 2024, arXiv 2412.13795: post-norm in the first floor(a L) of L layers, with
a = 0.25. The paper was not read for this file. By that formula a stack of fewer than four layers
would have no post-norm layer, and equal ``pre``; here its first layer is post-norm.
"""

from __future__ import annotations

from norm_plugin.placements.base import LayerPlace, Placement, register_placement
from norm_plugin.placements.post import Post
from norm_plugin.placements.pre import Pre

A = 0.25


@register_placement(
    "mix",
    equation="norm(x + f(x)) in the first quarter of the layers, x + f(norm(x)) in the others",
    paper="Li et al. 2024, Mix-LN",
    paper_read=False,
)
class Mix(Placement):
    """Post-norm near the embeddings, pre-norm above."""

    final_norm = True

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        return Post if place.index <= max(1, int(A * place.layers)) else Pre
