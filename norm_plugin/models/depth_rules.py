"""Initial weights that depend on the width, or on the number of layers.

The text of none of these papers was read. The formulas are quoted from notes and are what is
generally said of them. With d the width, l the number of a layer, N encoder and M decoder layers,
L the number of branches of a stack:

    small          Nguyen and Salazar 2019, arXiv 1910.05895, "SmallInit": w normal of variance
                   2 / (d + 4 d), which is Xavier normal for a map from d to 4 d
    depth-scaled   Zhang, Titov and Sennrich 2019, D19-1083, "DS-Init" with alpha = 1: w uniform
                   within sqrt(6 / (fan_in + fan_out)) / sqrt(l)
    fixup          Zhang, Dauphin and Ma 2019, arXiv 1901.09321: the last map of each branch is 0,
                   and the others are scaled by L^(-1 / (2 m - 2)), with m = 2 maps in a branch. An
                   attention is taken as W_V and W_O. The authors take it as four maps, and scale
                   W_Q, W_K and W_V by L^(-1/6) (hongyi-zhang/Fixup, issue 8). The learned scales
                   and offsets of the paper, and its 0 for the output projection, are not part of
                   this: a flag for initial weights adds no parameters, and the projection may be
                   shared with the embeddings
    t-fixup        Huang et al. 2020, "Improving Transformer Optimization Through Better
                   Initialization": Xavier uniform; W_V, W_O, W_1 and W_2 are scaled by
                   0.67 N^(-1/4) in the encoder and (9 M)^(-1/4) in the decoder; embeddings are
                   normal of standard deviation d^(-1/2), scaled by (9 M)^(-1/4). A stack alone
                   has (9 L)^(-1/4). The paper then trains without norms: ``--norm-type none``.
                   The authors' code (layer6ai-labs/T-Fixup) was read and agrees, except that it
                   leaves W_Q and W_K as fairseq draws them, with a gain of 1 / sqrt(2)
"""

from __future__ import annotations

from torch import nn

from norm_plugin.models.linear_maps import last_maps, linear_maps, value_maps
from norm_plugin.placements import LayerPlace


def small(layer: nn.Module, place: LayerPlace) -> None:
    """SmallInit of every linear map of ``layer``; biases 0."""
    for linear in linear_maps(layer):
        nn.init.normal_(linear.weight, std=(2 / (5 * place.dim)) ** 0.5)
        _no_bias(linear)


def depth_scaled(layer: nn.Module, place: LayerPlace) -> None:
    """DS-Init of every linear map of ``layer``; biases 0."""
    for linear in linear_maps(layer):
        nn.init.xavier_uniform_(linear.weight, gain=place.index**-0.5)
        _no_bias(linear)


def fixup(layer: nn.Module, place: LayerPlace) -> None:
    """Fixup of a layer that fairseq has built; what it does not name stays fairseq's."""
    branches = place.layers * len(place.branches)
    for linear in value_maps(layer):
        linear.weight.data.mul_(branches ** (-1 / 2))  # m = 2
    for linear in last_maps(layer):
        nn.init.zeros_(linear.weight)
        _no_bias(linear)


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
    layers = place.decoder_layers or place.encoder_layers
    std = embedding.embedding_dim ** (-1 / 2) * (9 * layers) ** (-1 / 4)
    nn.init.normal_(embedding.weight, std=std)
    if embedding.padding_idx is not None:
        nn.init.zeros_(embedding.weight[embedding.padding_idx])


def _no_bias(linear: nn.Linear) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
