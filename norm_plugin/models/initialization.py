"""The initial weights of a layer: ``--norm-init``.

This is a separate flag, so that any norm and placement can be compared under any of these:

    xavier              fairseq's own, unchanged: attention is Xavier uniform (Glorot and Bengio
                        2010), the feed-forward network is torch's default
    kaiming             every linear map of a layer: w uniform within 1 / sqrt(fan_in), biases 0
    kaiming-attention   the projections of attention only, which is all that ``--init_method km``
                        of the code released with AdaNorm changes

and those that depend on the width d or on the number of layers, with l the number of a layer, N
encoder and M decoder layers, and L the number of branches of a stack. None of their papers' texts
was read; the formulas are quoted from notes, and code was read where it is named:

    small          Nguyen and Salazar 2019, arXiv 1910.05895, "SmallInit": w normal of variance
                   2 / (d + 4 d) in attentions and 2 / (d + d_ff) in feed-forward networks, as in
                   the authors' code (tnq177/transformers_without_tears, layers.py)
    depth-scaled   Zhang, Titov and Sennrich 2019, D19-1083, "DS-Init" with alpha = 1: w uniform
                   within sqrt(6 / (fan_in + fan_out)) / sqrt(l). The authors' code (bzhangGo/zero,
                   read in excerpts) divides the variance by sqrt(l), so the weights by l^(1/4):
                   ``depth-scaled-released``
    fixup          Zhang, Dauphin and Ma 2019, arXiv 1901.09321: the last map of each branch is 0,
                   and the others are scaled by L^(-1 / (2 m - 2)), with m = 2 maps per branch. An
                   attention counts as W_V and W_O. The authors count it as four maps, and scale
                   W_Q, W_K and W_V by L^(-1/6), with L = 2 N + 3 M over both stacks
                   (hongyi-zhang/Fixup, multihead_attention_zero.py and issue 8):
                   ``fixup-released``. The learned scales and offsets of the paper, and its 0 for
                   the output projection, are not included: a flag for initial weights adds no
                   parameters, and the projection may be shared with the embeddings
    t-fixup        Huang et al. 2020, "Improving Transformer Optimization Through Better
                   Initialization": Xavier uniform; W_V, W_O, W_1 and W_2 are scaled by
                   0.67 N^(-1/4) in the encoder and (9 M)^(-1/4) in the decoder; embeddings are
                   normal of standard deviation d^(-1/2), scaled by (9 L)^(-1/4), with the number
                   of layers of their own stack. A stack alone has (9 L)^(-1/4) throughout. The
                   paper then trains without norms and without warm-up: ``--norm-type none``. The
                   authors' code (layer6ai-labs/T-Fixup) agrees as far as it was read, except that
                   it leaves W_Q and W_K as fairseq draws them, with a gain of 1 / sqrt(2)
    gpt2           Radford et al. 2019, section 2.3: the last map of each branch is divided by
                   sqrt(L), which is sqrt(2 N) in a stack of N layers with two branches. Its normal
                   weights of standard deviation 0.02 are not included: the others are fairseq's
    nanogpt        GPT-2's start as in nanoGPT (karpathy/nanoGPT, model.py): every linear map and
                   the embeddings of tokens and positions are normal of standard deviation 0.02,
                   the last map of each branch 0.02 / sqrt(L), biases 0. nanoGPT does not scale its
                   embeddings: add ``--no-scale-embedding``

A placement may define initial weights of its own; its name is then one more value of the flag.
Embeddings and the output projection are fairseq's, except with ``t-fixup`` and ``nanogpt``.

The AdaNorm paper (Xu et al. 2019, section 4) advises Kaiming initialization with AdaNorm. Kaiming
initialization (He et al. 2015, Eq. 15) is Var(w) = 2 / ((1 + a^2) fan_in) for a leaky ReLU of slope
a. The paper names neither a nor the distribution; both are taken from its released code, a =
sqrt(5) and uniform, which is also torch's default for the weights of a linear map.
``kaiming-attention`` is not the whole initialization of that code: its feed-forward maps are Xavier
uniform with biases 0, whatever ``--init_method`` says; here they are those of current fairseq.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from fairseq.modules import MultiheadAttention
from torch import nn

from norm_plugin.declarations.flags import XAVIER
from norm_plugin.placements import (
    PLACEMENTS,
    LayerPlace,
    fairseqs_modules,
    overrides,
    placement_class,
)

T_FIXUP, NANOGPT = "t-fixup", "nanogpt"
Maps = Callable[[nn.Module], Iterator[nn.Linear]]
SLOPE = math.sqrt(5)  # a
NANOGPT_STD = 0.02


# ---- the linear maps of a layer of fairseq's Transformer ------------------------------------


def attention_projections(layer: nn.Module) -> Iterator[nn.Linear]:
    """Yield W_Q, W_K, W_V and W_O of every attention of a Transformer layer, in this order."""
    for module in layer.modules():
        if isinstance(module, MultiheadAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                assert isinstance(projection, nn.Linear)
                yield projection


def linear_maps(layer: nn.Module) -> Iterator[nn.Linear]:
    """Yield every linear map of a Transformer layer but those inside a norm or the placement."""
    return (module for module in fairseqs_modules(layer) if isinstance(module, nn.Linear))


def value_maps(layer: nn.Module) -> list[nn.Linear]:
    """Return W_V and W_O of every attention of a Transformer layer, and W_1 and W_2."""
    projections = list(attention_projections(layer))
    queries_and_keys = {id(linear) for linear in [*projections[0::4], *projections[1::4]]}
    return [linear for linear in linear_maps(layer) if id(linear) not in queries_and_keys]


def last_maps(layer: nn.Module) -> list[nn.Linear]:
    """Return the last linear map of each branch of a Transformer layer."""
    projections = list(attention_projections(layer))
    assert isinstance(layer.fc2, nn.Linear)
    return [*projections[3::4], layer.fc2]


# ---- initial weights -------------------------------------------------------------------------


def kaiming(layer: nn.Module, place: LayerPlace, maps: Maps = linear_maps) -> None:
    """Draw uniform weights of variance 2 / ((1 + a^2) fan_in) for these ``maps``; biases are 0."""
    for linear in maps(layer):
        nn.init.kaiming_uniform_(linear.weight, a=SLOPE)
        _no_bias(linear)


def small(layer: nn.Module, place: LayerPlace) -> None:
    """Apply SmallInit to every linear map of ``layer``; biases are 0."""
    for linear in linear_maps(layer):
        nn.init.xavier_normal_(linear.weight)
        _no_bias(linear)
    for linear in attention_projections(layer):
        nn.init.normal_(linear.weight, std=(2 / (5 * place.dim)) ** 0.5)


def depth_scaled(layer: nn.Module, place: LayerPlace, power: float = -1 / 2) -> None:
    """Apply DS-Init, scaled by l^power, to every linear map of ``layer``; biases are 0."""
    for linear in linear_maps(layer):
        nn.init.xavier_uniform_(linear.weight, gain=place.index**power)
        _no_bias(linear)


def fixup(layer: nn.Module, place: LayerPlace) -> None:
    """Apply Fixup to a layer that fairseq has built; other weights do not change."""
    for linear in value_maps(layer):
        linear.weight.data.mul_(place.branches_of_stack ** (-1 / 2))  # m = 2
    _no_last_maps(layer)


def fixup_released(layer: nn.Module, place: LayerPlace) -> None:
    """Apply Fixup as the authors' code does: four maps per attention, L over both stacks."""
    branches = place.branches_of_stack
    if place.encoder_layers and place.decoder_layers:
        branches = 2 * place.encoder_layers + 3 * place.decoder_layers
    for linear in linear_maps(layer):
        linear.weight.data.mul_(branches ** (-1 / 2))  # m = 2
    for linear in attention_projections(layer):
        linear.weight.data.mul_(branches ** (1 / 2 - 1 / 6))  # m = 4
    _no_last_maps(layer)


def _no_last_maps(layer: nn.Module) -> None:
    for linear in last_maps(layer):
        nn.init.zeros_(linear.weight)
        _no_bias(linear)


def gpt2(layer: nn.Module, place: LayerPlace) -> None:
    """Divide the last map of each branch of a layer that fairseq has built by sqrt(L)."""
    for linear in last_maps(layer):
        linear.weight.data.mul_(place.branches_of_stack ** (-1 / 2))


def nanogpt(layer: nn.Module, place: LayerPlace) -> None:
    """Draw every linear map of ``layer`` from N(0, 0.02^2), then apply GPT-2's scaling."""
    for linear in linear_maps(layer):
        nn.init.normal_(linear.weight, std=NANOGPT_STD)
        _no_bias(linear)
    gpt2(layer, place)


def t_fixup(layer: nn.Module, place: LayerPlace) -> None:
    """Apply T-Fixup to the linear maps of ``layer``; biases are 0."""
    alone = not (place.encoder_layers and place.decoder_layers)
    if place.side == "encoder" and not alone:
        gain = 0.67 * place.encoder_layers ** (-1 / 4)
    else:
        gain = (9 * place.layers) ** (-1 / 4)
    for linear in linear_maps(layer):
        nn.init.xavier_uniform_(linear.weight)
        _no_bias(linear)
    for linear in value_maps(layer):
        linear.weight.data.mul_(gain)


def _draw_embedding(embedding: nn.Embedding, std: float) -> None:
    """Draw normal embeddings; the row of the padding is 0."""
    nn.init.normal_(embedding.weight, std=std)
    if embedding.padding_idx is not None:
        nn.init.zeros_(embedding.weight[embedding.padding_idx])


def _no_bias(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


INITIALIZATIONS: dict[str, Callable[[nn.Module, LayerPlace], None]] = {
    XAVIER: lambda layer, place: None,
    "kaiming": kaiming,
    "kaiming-attention": partial(kaiming, maps=attention_projections),
    "small": small,
    "depth-scaled": depth_scaled,
    "depth-scaled-released": partial(depth_scaled, power=-1 / 4),
    "fixup": fixup,
    "fixup-released": fixup_released,
    T_FIXUP: t_fixup,
    "gpt2": gpt2,
    NANOGPT: nanogpt,
}
"""The functions that initialize a layer built by fairseq, by the value of ``--norm-init``."""


def default_init(name: str) -> str:
    """Return the default initialization of placement ``name``: its own, or else fairseq's."""
    return name if overrides(placement_class(name), "initialize") else XAVIER


def initializations() -> list[str]:
    """Return the values of ``--norm-init``: those above, and placements with their own weights."""
    return [
        *INITIALIZATIONS,
        *(name for name in PLACEMENTS if default_init(name) == name),
    ]


def initialize(layer: nn.Module, init: str, place: LayerPlace) -> None:
    """Initialize a layer that fairseq has built, by a value of ``--norm-init``."""
    if init in INITIALIZATIONS:
        INITIALIZATIONS[init](layer, place)
    else:
        placement_class(init).initialize(layer, place)


def initialize_embeddings(
    tokens: nn.Module, positions: nn.Module | None, init: str, place: LayerPlace
) -> None:
    """Initialize the embeddings of a stack whose layers have ``place``, by ``--norm-init``.

    Embeddings that the stacks share are drawn for each, so the decoder's draw remains.
    """
    if init == T_FIXUP and isinstance(tokens, nn.Embedding):
        std = tokens.embedding_dim ** (-1 / 2) * (9 * place.layers) ** (-1 / 4)
        _draw_embedding(tokens, std)
    if init == NANOGPT:
        for embedding in (tokens, positions):
            if isinstance(embedding, nn.Embedding):
                _draw_embedding(embedding, NANOGPT_STD)
