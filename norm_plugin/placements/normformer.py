"""NormFormer: pre-norm, a norm after each attention, one inside the FFN, and scaled heads.

    attention   x + norm(W_O concat(s_1 h_1, ..., s_H h_H)),  h = the heads of norm(x)
    FFN         x + W_2 norm(act(W_1 norm(x)))

s is learned and starts at 1. Source: Shleifer et al. 2021, arXiv 2110.09456. The paper
was not read for this file. It describes language models without attention over an encoder; that is
treated here as the self-attention is. The code released with it is in fairseq (scale_heads,
scale_attn and scale_fc in its decoder layer) and was read; it scales slices of the output of W_O,
instead of the heads that go into W_O. As there, dropout comes after the norm that follows W_O.

``normformer-res-scale`` has the paper's ResScale too, which fairseq calls scale_resids:
r * x + W_2 norm(act(W_1 norm(x))) in the feed-forward network, r a learned vector that starts at 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.placements.base import (
    INNER,
    INPUT,
    OUTPUT,
    LayerPlace,
    Placement,
    register_placement,
)


@register_placement(
    "normformer",
    equation="attention: x + norm(W_O s h(norm(x)));  FFN: x + W_2 norm(h(norm(x)))",
    paper="Shleifer et al. 2021, NormFormer",
    paper_read=False,
)
class NormFormer(Placement):
    """Pre-norm with two more norms per layer and a learned scale per head.

    Attributes:
        head_scale: s, per attention, (heads,).
    """

    final_norm = True
    norm_before_dropout = True

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.head_scale = nn.ParameterDict(
            {
                branch: nn.Parameter(torch.ones(place.heads))
                for branch in place.branches
                if branch != "ffn"
            }
        )

    @classmethod
    def norms_of(cls, branch: str) -> tuple[str, ...]:
        return (INPUT, INNER) if branch == "ffn" else (INPUT, OUTPUT)

    def inside(self, h: Tensor, branch: str) -> Tensor:
        if branch == "ffn":
            return h
        heads = h.unflatten(-1, (self.place.heads, -1))
        return (self.head_scale[branch].unsqueeze(-1) * heads).flatten(-2)


@register_placement(
    "normformer-res-scale",
    equation="attention: as normformer;  FFN: r x + W_2 norm(h(norm(x)))",
    paper="Shleifer et al. 2021, NormFormer with ResScale",
    paper_read=False,
)
class NormFormerResScale(NormFormer):
    """``normformer`` with a learned scale of the stream that the FFN joins.

    Attributes:
        res_scale: r, (C,).
    """

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.res_scale = nn.Parameter(torch.ones(place.dim))

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return self.res_scale * x + fx if branch == "ffn" else x + fx
