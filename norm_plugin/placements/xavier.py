"""Xavier initialization with a gain for the maps that carry values, as in DeepNet and Magneto.

The module registers no placement; ``deepnorm`` and ``sublayer`` use it.
"""

from __future__ import annotations

from operator import attrgetter

from torch import nn

from norm_plugin.placements.base import LayerPlace

ATTENTIONS = {"self": "self_attn", "cross": "encoder_attn"}


def xavier_with_gain(layer: nn.Module, place: LayerPlace, gain: float) -> None:
    """Draw the weights of a layer's linear maps: Xavier normal, ``gain`` for all but W_Q and W_K.

    Args:
        layer: a Transformer layer with fairseq's module names.
        place: the position of the layer.
        gain: the gain of all maps but W_Q and W_K, whose gain is 1.
    """
    gains = {"fc1": gain, "fc2": gain}
    for branch in place.branches:
        if branch in ATTENTIONS:
            attention = ATTENTIONS[branch]
            gains |= {f"{attention}.{name}": 1.0 for name in ("q_proj", "k_proj")}
            gains |= {f"{attention}.{name}": gain for name in ("v_proj", "out_proj")}
    for path, gain_of_map in gains.items():
        nn.init.xavier_normal_(attrgetter(path)(layer).weight, gain=gain_of_map)
