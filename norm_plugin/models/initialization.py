"""The weights that a layer starts from: ``--norm-init``.

The AdaNorm paper (Xu et al. 2019, section 4) advises Kaiming initialization with AdaNorm. It is a
flag of its own, so that any norm can be compared under any of these:

    xavier              fairseq's own, nothing is drawn anew: attention is Xavier uniform
                        (Glorot and Bengio 2010), the feed-forward network is torch's default
    kaiming             every linear map of a layer: w uniform within 1 / sqrt(fan_in), biases 0
    kaiming-attention   the projections of attention only, which is all that ``--init_method km``
                        of the code released with AdaNorm changes

Kaiming initialization (He et al. 2015, Eq. 15) is Var(w) = 2 / ((1 + a^2) fan_in) for a leaky
ReLU of slope a. The paper names neither a nor the distribution; both are taken from its released
code, a = sqrt(5) and uniform, which is also torch's default for the weights of a linear map.
Embeddings and the output projection stay fairseq's.

``kaiming-attention`` is not the whole start of that code: its feed-forward maps are Xavier uniform
with biases 0, whatever ``--init_method`` says, and here they stay as fairseq builds them today,
torch's default for a linear map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fairseq.modules import MultiheadAttention
from torch import nn

from norm_plugin.placements import PLACEMENTS, LayerPlace, Placement, placement_class

XAVIER = "xavier"
SLOPE = math.sqrt(5)  # a


def attention_projections(layer: nn.Module) -> Iterator[nn.Linear]:
    """W_Q, W_K, W_V and W_O of every attention of a Transformer layer."""
    for module in layer.modules():
        if isinstance(module, MultiheadAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                assert isinstance(projection, nn.Linear)
                yield projection


def linear_maps(layer: nn.Module) -> Iterator[nn.Linear]:
    """Every linear map of a Transformer layer."""
    return (module for module in layer.modules() if isinstance(module, nn.Linear))


def kaiming(layer: nn.Module) -> None:
    """Kaiming initialization of every linear map of ``layer``."""
    for linear in linear_maps(layer):
        _draw(linear)


def kaiming_attention(layer: nn.Module) -> None:
    """The released code's ``km``: the attention of ``layer`` alone; its other maps stay."""
    for linear in attention_projections(layer):
        _draw(linear)


def _draw(linear: nn.Linear) -> None:
    """Uniform weights of variance 2 / ((1 + a^2) fan_in), and no bias."""
    nn.init.kaiming_uniform_(linear.weight, a=SLOPE)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


INITIALIZATIONS: dict[str, Callable[[nn.Module], None]] = {
    XAVIER: lambda layer: None,
    "kaiming": kaiming,
    "kaiming-attention": kaiming_attention,
}
"""What is done to a layer that fairseq has built, by the word of ``--norm-init``."""


def of_placement(name: str) -> str:
    """The initialization that belongs to placement ``name``: fairseq's own, unless it has one."""
    own = placement_class(name).initialize is not Placement.initialize
    return name if own else XAVIER


def initializations() -> list[str]:
    """The words of ``--norm-init``: those above, and each placement that draws its own weights."""
    return [*INITIALIZATIONS, *(name for name in PLACEMENTS if of_placement(name) == name)]


def initialize(layer: nn.Module, word: str, place: LayerPlace) -> None:
    """Draw the weights of a layer that fairseq has built, by a word of ``--norm-init``."""
    if word in INITIALIZATIONS:
        INITIALIZATIONS[word](layer)
    else:
        placement_class(word).initialize(layer, place)
