"""SpanNorm: post-norm whose feed-forward network is added to the input of the layer.

    attention   y = norm(x + f(x))
    FFN         x' = norm(x_layer + f(y)),  x_layer the input of the layer

The first attention of a stack reads its input through a norm, which its skip connection bypasses.
There is no norm after the stack.

Source: Wang et al. 2026, "SpanNorm: Reconciling Training Stability and Performance in Deep
Transformers", arXiv 2601.22580. The paper was not read for this file: the equations are those of a
third-party implementation, which cites Equations 5 to 8, and agree with the abstract. The paper's
initial weights are not known. It has no attention over an encoder; that is treated here as the
self-attention is.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.placements.base import (
    INPUT,
    SUM,
    LayerPlace,
    Placement,
    Stream,
    register_placement,
)


@register_placement(
    "span",
    equation="attention: norm(x + f(x));  FFN: norm(x_layer + f(x))",
    paper="Wang et al. 2026, SpanNorm",
    paper_read=False,
)
class Span(Placement):
    """Post-norm; the skip connection of the FFN is x_layer, the input of the layer."""

    norms = (SUM,)

    @classmethod
    def at(cls, place: LayerPlace) -> type[Placement]:
        return SpanFirst if place.index == 1 else Span

    def begin(self, x: Tensor) -> Stream:
        return x, x

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        x, x_layer = x
        return (x_layer if branch == "ffn" else x) + fx, x_layer


class SpanFirst(Span):
    """The first layer, whose self-attention reads the stream through a norm."""

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        return (INPUT, SUM) if branch == "self" else (SUM,)
