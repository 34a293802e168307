"""HybridNorm: norms of queries, keys and values in the attentions, post-norm in the FFN.

    attention   x + A(x),  A with a norm on the queries, the keys and the values of each head
    FFN         y + f(y),  y = norm(x)

and a norm after the stack. The starred form also normalizes the inputs of the first layer's
branches, as ``pre`` does: x + A(norm(x)) and x + f(norm(x)), with the norms in the attention as
above.

Source: Zhuo et al. 2025, arXiv 2503.04598. The paper was not read for this file. The README and the
configuration of the authors' release (BryceZhuo/HybridNorm) were: use_query_norm, use_key_norm,
use_value_norm and ffn_norm are on, attn_norm is off, ffn_residual_after_norm is on; the starred
form switches attn_norm on and ffn_residual off in layer 0. Its model code was not available. The
paper has no attention over an encoder; that is treated here as the self-attention is. The initial
weights of the release are those of its model (OLMo 2), and are not part of this placement.
"""

from __future__ import annotations

from norm_plugin.placements.base import (
    IN_ATTENTION,
    INPUT,
    STREAM,
    LayerPlace,
    Placement,
    register_placement,
)


@register_placement(
    "hybrid",
    equation="attention: x + f(x), norms of queries, keys, values;  FFN: y + f(y), y = norm(x)",
    paper="Zhuo et al. 2025, HybridNorm",
    paper_read=False,
)
class Hybrid(Placement):
    """Norms inside the attentions, and a norm of the stream before each feed-forward network."""

    final_norm = True

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        return (STREAM,) if branch == "ffn" else IN_ATTENTION


class HybridFirst(Hybrid):
    """The first layer of the starred form."""

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        return (INPUT,) if branch == "ffn" else (INPUT, *IN_ATTENTION)


@register_placement(
    "hybrid-star",
    equation="as hybrid;  the first layer: x + f(norm(x))",
    paper="Zhuo et al. 2025, HybridNorm*",
    paper_read=False,
)
class HybridStar(Hybrid):
    """``hybrid`` with a pre-norm first layer."""

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        return HybridFirst if place.index == 1 else Hybrid
