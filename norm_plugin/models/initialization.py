"""The weights that a layer starts from: ``--norm-init``.

A flag of its own, so that any norm and placement can be compared under any of these:

    xavier              fairseq's own, nothing is drawn anew: attention is Xavier uniform
                        (Glorot and Bengio 2010), the feed-forward network is torch's default
    kaiming             every linear map of a layer: w uniform within 1 / sqrt(fan_in), biases 0
    kaiming-attention   the projections of attention only, which is all that ``--init_method km``
                        of the code released with AdaNorm changes

and those that depend on the width d or on the number of layers, with l the number of a layer, N
encoder and M decoder layers, and L the number of branches of a stack. The text of none of their
papers was read; the formulas are quoted from notes, and where it is named the code was read:

    small          Nguyen and Salazar 2019, arXiv 1910.05895, "SmallInit": w normal of variance
                   2 / (d + 4 d) in attentions and 2 / (d + d_ff) in feed-forward networks, as in
                   the authors' code (tnq177/transformers_without_tears, layers.py)
    depth-scaled   Zhang, Titov and Sennrich 2019, D19-1083, "DS-Init" with alpha = 1: w uniform
                   within sqrt(6 / (fan_in + fan_out)) / sqrt(l). The authors' code (bzhangGo/zero,
                   read in excerpts) divides the variance by sqrt(l), so the weights by l^(1/4):
                   ``depth-scaled-released``
    fixup          Zhang, Dauphin and Ma 2019, arXiv 1901.09321: the last map of each branch is 0,
                   and the others are scaled by L^(-1 / (2 m - 2)), with m = 2 maps in a branch. An
                   attention is taken as W_V and W_O. The authors take it as four maps, and scale
                   W_Q, W_K and W_V by L^(-1/6), with L = 2 N + 3 M over both stacks
                   (hongyi-zhang/Fixup, multihead_attention_zero.py and issue 8):
                   ``fixup-released``. The learned scales and offsets of the paper, and its 0 for
                   the output projection, are not part of this: a flag for initial weights adds no
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
                   weights of standard deviation 0.02 are not part of this: the others stay
                   fairseq's
    nanogpt        GPT-2's start as nanoGPT has it (karpathy/nanoGPT, model.py): every linear map
                   and the embeddings of tokens and positions are normal of standard deviation
                   0.02, the last map of each branch 0.02 / sqrt(L), biases 0. nanoGPT does not
                   scale its embeddings: add ``--no-scale-embedding``

A placement may bring weights of its own; its name is then one more value of the flag. Embeddings
and the output projection stay fairseq's, except with ``t-fixup`` and ``nanogpt``.

The AdaNorm paper (Xu et al. 2019, section 4) advises Kaiming initialization with AdaNorm. Kaiming
initialization (He et al. 2015, Eq. 15) is Var(w) = 2 / ((1 + a^2) fan_in) for a leaky ReLU of slope
a. The paper names neither a nor the distribution; both are taken from its released code, a =
sqrt(5) and uniform, which is also torch's default for the weights of a linear map.
``kaiming-attention`` is not the whole start of that code: its feed-forward maps are Xavier uniform
with biases 0, whatever ``--init_method`` says, and here they stay as fairseq builds them today.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from fairseq.modules import MultiheadAttention
from torch import nn

from norm_plugin.placements import PLACEMENTS, LayerPlace, overrides, placement_class

XAVIER, T_FIXUP, NANOGPT = "xavier", "t-fixup", "nanogpt"
SLOPE = math.sqrt(5)  # a
NANOGPT_STD = 0.02


# ---- the linear maps of a layer of fairseq's Transformer ------------------------------------


def attention_projections(layer: nn.Module) -> Iterator[nn.Linear]:
    """W_Q, W_K, W_V and W_O of every attention of a Transformer layer, in this order."""
    for module in layer.modules():
        if isinstance(module, MultiheadAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                assert isinstance(projection, nn.Linear)
                yield projection


def linear_maps(layer: nn.Module) -> Iterator[nn.Linear]:
    """Every linear map of a Transformer layer."""
    return (module for module in layer.modules() if isinstance(module, nn.Linear))


def value_maps(layer: nn.Module) -> list[nn.Linear]:
    """W_V and W_O of every attention of a Transformer layer, and W_1 and W_2."""
    projections = list(attention_projections(layer))
    queries_and_keys = {id(linear) for linear in [*projections[0::4], *projections[1::4]]}
    return [linear for linear in linear_maps(layer) if id(linear) not in queries_and_keys]


def last_maps(layer: nn.Module) -> list[nn.Linear]:
    """The linear map that each branch of a Transformer layer ends in."""
    projections = list(attention_projections(layer))
    assert isinstance(layer.fc2, nn.Linear)
    return [*projections[3::4], layer.fc2]


# ---- initial weights -------------------------------------------------------------------------


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


def small(layer: nn.Module, place: LayerPlace) -> None:
    """SmallInit of every linear map of ``layer``; biases 0."""
    for linear in linear_maps(layer):
        nn.init.xavier_normal_(linear.weight)
        _no_bias(linear)
    for linear in attention_projections(layer):
        nn.init.normal_(linear.weight, std=(2 / (5 * place.dim)) ** 0.5)


def depth_scaled(layer: nn.Module, place: LayerPlace, power: float = -1 / 2) -> None:
    """DS-Init of every linear map of ``layer``, times l^power; biases 0."""
    for linear in linear_maps(layer):
        nn.init.xavier_uniform_(linear.weight, gain=place.index**power)
        _no_bias(linear)


def fixup(layer: nn.Module, place: LayerPlace) -> None:
    """Fixup of a layer that fairseq has built; what it does not name stays fairseq's."""
    for linear in value_maps(layer):
        linear.weight.data.mul_(place.branches_of_stack ** (-1 / 2))  # m = 2
    _no_last_maps(layer)


def fixup_released(layer: nn.Module, place: LayerPlace) -> None:
    """Fixup as in the authors' code: an attention of four maps, L counted over both stacks."""
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
    """The last map of each branch of a layer that fairseq has built, divided by sqrt(L)."""
    for linear in last_maps(layer):
        linear.weight.data.mul_(place.branches_of_stack ** (-1 / 2))


def nanogpt(layer: nn.Module, place: LayerPlace) -> None:
    """Draw every linear map of ``layer`` from N(0, 0.02^2), then apply GPT-2's scaling."""
    for linear in linear_maps(layer):
        nn.init.normal_(linear.weight, std=NANOGPT_STD)
        _no_bias(linear)
    gpt2(layer, place)


def t_fixup(layer: nn.Module, place: LayerPlace) -> None:
    """T-Fixup of the linear maps of ``layer``; biases 0."""
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


def t_fixup_embedding(embedding: nn.Embedding, place: LayerPlace) -> None:
    """T-Fixup of the embeddings of a stack; that of padding is 0."""
    std = embedding.embedding_dim ** (-1 / 2) * (9 * place.layers) ** (-1 / 4)
    _draw_embedding(embedding, std)


def _draw_embedding(embedding: nn.Embedding, std: float) -> None:
    nn.init.normal_(embedding.weight, std=std)
    if embedding.padding_idx is not None:
        nn.init.zeros_(embedding.weight[embedding.padding_idx])


def _no_bias(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


INITIALIZATIONS: dict[str, Callable[[nn.Module, LayerPlace], None]] = {
    XAVIER: lambda layer, place: None,
    "kaiming": kaiming,
    "kaiming-attention": kaiming_attention,
    "small": small,
    "depth-scaled": depth_scaled,
    "depth-scaled-released": partial(depth_scaled, power=-1 / 4),
    "fixup": fixup,
    "fixup-released": fixup_released,
    T_FIXUP: t_fixup,
    "gpt2": gpt2,
    NANOGPT: nanogpt,
}
"""What is done to a layer that fairseq has built, by the value of ``--norm-init``."""


def of_placement(name: str) -> str:
    """The initialization that belongs to placement ``name``: fairseq's own, unless it has one."""
    return name if overrides(placement_class(name), "initialize") else XAVIER


def initializations() -> list[str]:
    """The values of ``--norm-init``: those above, and each placement that draws its own weights."""
    return [*INITIALIZATIONS, *(name for name in PLACEMENTS if of_placement(name) == name)]


def initialize(layer: nn.Module, init: str, place: LayerPlace) -> None:
    """Draw the weights of a layer that fairseq has built, by a value of ``--norm-init``."""
    if init in INITIALIZATIONS:
        INITIALIZATIONS[init](layer, place)
    else:
        placement_class(init).initialize(layer, place)


def initialize_embeddings(
    tokens: nn.Module, positions: nn.Module | None, init: str, place: LayerPlace
) -> None:
    """Draw the embeddings of a stack whose layers have ``place``, by a value of ``--norm-init``.

    Embeddings that the stacks share are drawn for each, so the decoder's draw is what stays.
    """
    if init == T_FIXUP and isinstance(tokens, nn.Embedding):
        t_fixup_embedding(tokens, place)
    if init == NANOGPT:
        for embedding in (tokens, positions):
            if isinstance(embedding, nn.Embedding):
                _draw_embedding(embedding, NANOGPT_STD)
