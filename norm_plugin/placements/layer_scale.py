"""LayerScale: x + lambda * f(norm(x)), and a norm after the stack.

lambda is a learned vector per branch. All of its channels start at one small number, which depends
on the number of layers of the stack: 0.1 up to 18 layers, 1e-5 up to 24, and 1e-6 above. Source:
Touvron et al. 2021, "Going deeper with Image Transformers" (CaiT), arXiv 2103.17239. The paper was
not read for this file; equation and initial values are quoted from notes. CaiT is an encoder of
images; the attention of a decoder over its encoder is treated here as the other branches are.

It is not ``--norm-layer-scale-groups`` of PowerNorm, which scales the input of a norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.placements.base import INPUT, LayerPlace, Placement, register_placement


def start_of_scale(layers: int) -> float:
    """Return the initial value of lambda for a stack of ``layers`` layers."""
    if layers <= 18:
        return 0.1
    return 1e-5 if layers <= 24 else 1e-6


@register_placement(
    "layer-scale",
    equation="x + lambda * f(norm(x)),  lambda small at the start",
    paper="Touvron et al. 2021, CaiT",
    paper_read=False,
)
class LayerScale(Placement):
    """Pre-norm that multiplies each channel of each branch by a learned number.

    Attributes:
        scale: lambda, per branch, (C,).
    """

    norms = (INPUT,)
    final_norm = True

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        start = start_of_scale(place.layers)
        self.scale = nn.ParameterDict(
            {branch: nn.Parameter(torch.full((place.dim,), start)) for branch in place.branches}
        )

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return x + self.scale[branch] * fx
