"""The linear maps of a layer of fairseq's Transformer."""

from __future__ import annotations

from collections.abc import Iterator

from fairseq.modules import MultiheadAttention
from torch import nn


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
    queries_and_keys = {id(one) for one in [*projections[0::4], *projections[1::4]]}
    return [linear for linear in linear_maps(layer) if id(linear) not in queries_and_keys]


def last_maps(layer: nn.Module) -> list[nn.Linear]:
    """The linear map that each branch of a Transformer layer ends in."""
    projections = list(attention_projections(layer))
    assert isinstance(layer.fc2, nn.Linear)
    return [*projections[3::4], layer.fc2]
