"""Sub-LN: pre-norm, and one more norm inside each branch, before its last map.

    attention   x + W_O norm(heads(norm(x)))
    FFN         x + W_2 norm(act(W_1 norm(x)))

Source: Wang et al. 2022, "Foundation Transformers" (Magneto), arXiv 2210.06423. With N
encoder and M decoder layers, the gain of Xavier initialization (normal) of W_V, W_O and both
matrices of the feed-forward network is

    encoder          sqrt(1/3 log(3 M) log(2 N))
    decoder          sqrt(log(3 M))
    one stack of L   sqrt(log(2 L))

and that of W_Q and W_K is 1. Biases are initialized by fairseq. The paper's text was not read for
this file; the formulas are quoted from notes. The authors' code (microsoft/torchscale, encoder.py
and decoder.py) was read. It has the same gains, but multiplies by them the weights and biases that
torch draws for a linear map. Its attention over the encoder has neither an inner norm nor the gain;
here it has both.
"""

from __future__ import annotations

from math import log, sqrt

from torch import nn

from norm_plugin.placements.base import INNER, INPUT, LayerPlace, Placement, register_placement
from norm_plugin.placements.xavier import xavier_with_gain


def gain(place: LayerPlace) -> float:
    """Return the gain of the initial weights of W_V, W_O and the feed-forward network."""
    n, m = place.encoder_layers, place.decoder_layers
    if not (n and m):
        return sqrt(log(2 * place.layers))
    if place.side == "encoder":
        return sqrt(log(3 * m) * log(2 * n) / 3)
    return sqrt(log(3 * m))


@register_placement(
    "sublayer",
    equation="x + W norm(h(norm(x))),  f(y) = W h(y)",
    paper="Wang et al. 2022, Foundation Transformers",
    paper_read=False,
)
class Sublayer(Placement):
    """A norm on the input of each branch and one before its last map."""

    norms = (INPUT, INNER)
    final_norm = True

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Draw Xavier normal weights; those of W_V, W_O, W_1 and W_2 have a gain by the depth."""
        xavier_with_gain(layer, place, gain(place))
