"""The weights that a layer starts from: ``--norm-init``.

A flag of its own, so that any norm and placement can be compared under any of these:

    xavier              fairseq's own, nothing is drawn anew: attention is Xavier uniform
                        (Glorot and Bengio 2010), the feed-forward network is torch's default
    kaiming             every linear map of a layer: w uniform within 1 / sqrt(fan_in), biases 0
    kaiming-attention   the projections of attention only, which is all that ``--init_method km``
                        of the code released with AdaNorm changes
    small               every linear map of a layer: w normal of variance 2 / (5 d), biases 0
    depth-scaled        every linear map of layer l: Xavier uniform / sqrt(l), biases 0
    fixup               every branch starts as 0, and its other maps are scaled by the number of
                        branches
    t-fixup             values, outputs and feed-forward networks scaled by the numbers of layers,
                        and the embeddings too

A placement may bring weights of its own; its name is then one more word. ``depth_rules.py`` has the
last four, with their sources.

The AdaNorm paper (Xu et al. 2019, section 4) advises Kaiming initialization with AdaNorm. Kaiming
initialization (He et al. 2015, Eq. 15) is Var(w) = 2 / ((1 + a^2) fan_in) for a leaky ReLU of slope
a. The paper names neither a nor the distribution; both are taken from its released code, a =
sqrt(5) and uniform, which is also torch's default for the weights of a linear map.

``kaiming-attention`` is not the whole start of that code: its feed-forward maps are Xavier uniform
with biases 0, whatever ``--init_method`` says, and here they stay as fairseq builds them today,
torch's default for a linear map.

Embeddings and the output projection stay fairseq's, but for ``t-fixup``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from norm_plugin.models import depth_rules
from norm_plugin.models.linear_maps import attention_projections, linear_maps
from norm_plugin.placements import PLACEMENTS, LayerPlace, overrides, placement_class

XAVIER = "xavier"
SLOPE = math.sqrt(5)  # a


def kaiming(layer: nn.Module, place: LayerPlace) -> None:
    """Kaiming initialization of every linear map of ``layer``."""
    for linear in linear_maps(layer):
        _draw(linear)


def kaiming_attention(layer: nn.Module, place: LayerPlace) -> None:
    """The released code's ``km``: the attention of ``layer`` alone; its other maps stay."""
    for linear in attention_projections(layer):
        _draw(linear)


def _draw(linear: nn.Linear) -> None:
    """Uniform weights of variance 2 / ((1 + a^2) fan_in), and no bias."""
    nn.init.kaiming_uniform_(linear.weight, a=SLOPE)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


INITIALIZATIONS: dict[str, Callable[[nn.Module, LayerPlace], None]] = {
    XAVIER: lambda layer, place: None,
    "kaiming": kaiming,
    "kaiming-attention": kaiming_attention,
    "small": depth_rules.small,
    "depth-scaled": depth_rules.depth_scaled,
    "fixup": depth_rules.fixup,
    "t-fixup": depth_rules.t_fixup,
}
"""What is done to a layer that fairseq has built, by the word of ``--norm-init``."""

OF_EMBEDDINGS: dict[str, Callable[[nn.Embedding, LayerPlace], None]] = {
    "t-fixup": depth_rules.t_fixup_embedding
}
"""The same for the embeddings of a stack."""


def of_placement(name: str) -> str:
    """The initialization that belongs to placement ``name``: fairseq's own, unless it has one."""
    return name if overrides(placement_class(name), "initialize") else XAVIER


def initializations() -> list[str]:
    """The words of ``--norm-init``: those above, and each placement that draws its own weights."""
    return [*INITIALIZATIONS, *(name for name in PLACEMENTS if of_placement(name) == name)]


def initialize(layer: nn.Module, word: str, place: LayerPlace) -> None:
    """Draw the weights of a layer that fairseq has built, by a word of ``--norm-init``."""
    if word in INITIALIZATIONS:
        INITIALIZATIONS[word](layer, place)
    else:
        placement_class(word).initialize(layer, place)


def initialize_embedding(embedding: nn.Module, word: str, place: LayerPlace) -> None:
    """Draw the embeddings of a stack whose layers have ``place``, by a word of ``--norm-init``.

    Embeddings that the stacks share are drawn once for each, from the same distribution.
    """
    if word in OF_EMBEDDINGS and isinstance(embedding, nn.Embedding):
        OF_EMBEDDINGS[word](embedding, place)
