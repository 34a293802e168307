"""DeepNorm: norm(alpha x + f(x)), with smaller initial weights in the branches.

Source: Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", arXiv 2203.00555.
With N encoder and M decoder layers:

    encoder          alpha = 0.81 (N^4 M)^(1/16)    beta = 0.87 (N^4 M)^(-1/16)
    decoder          alpha = (3 M)^(1/4)            beta = (12 M)^(-1/4)
    one stack of L   alpha = (2 L)^(1/4)            beta = (8 L)^(-1/4)

beta is the gain of Xavier initialization (normal) of W_V, W_O and both matrices of the feed-forward
network; that of W_Q and W_K is 1. Biases stay fairseq's.

The paper's text was not read for this file; its constants are quoted from notes. The authors' code
(microsoft/torchscale, encoder.py and decoder.py) was read. It differs from these constants in three
points: the encoder has 1.15 where the paper has 0.87; the weights that it multiplies are those that
torch draws for a linear map, since its layers do not call the Xavier initialization that their
attention defines; and it also multiplies the biases. This file follows the paper.
"""

from __future__ import annotations

from torch import Tensor, nn

from norm_plugin.placements.base import SUM, LayerPlace, Placement, register_placement
from norm_plugin.placements.xavier import xavier_with_gain


def alpha_beta(place: LayerPlace) -> tuple[float, float]:
    """Return alpha, the weight of the stream, and beta, the gain of the initial weights."""
    n, m = place.encoder_layers, place.decoder_layers
    if not (n and m):
        return (2 * place.layers) ** (1 / 4), (8 * place.layers) ** (-1 / 4)
    if place.side == "encoder":
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return (3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)


@register_placement(
    "deepnorm", equation="norm(alpha x + f(x))", paper="Wang et al. 2022, DeepNet", paper_read=False
)
class DeepNorm(Placement):
    """Post-norm that multiplies the stream by alpha, which grows with the number of layers."""

    norms = (SUM,)

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        alpha, _ = alpha_beta(self.place)
        return alpha * x + fx

    @staticmethod
    def initialize(layer: nn.Module, place: LayerPlace) -> None:
        """Draw Xavier normal weights; those of W_V, W_O, W_1 and W_2 have gain beta."""
        _, beta = alpha_beta(place)
        xavier_with_gain(layer, place, beta)
