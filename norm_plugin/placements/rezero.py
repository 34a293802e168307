"""ReZero: x + a f(x) without any norm; a is learned and starts at 0.

Source: Bachlechner et al. 2020, arXiv 2003.04887, and the authors' code (majumderb/rezero,
rztx.py), which was read: the branches of a layer share one a. The paper's text was not read.
Since a = 0 at the start, the first update changes only a and leaves every branch unchanged.

``rezero-pre`` separates the two changes of ReZero: the gate, and the missing norms. It has the gate
on the branch of pre-norm, with the norm after the stack: x + a f(norm(x)). A gate with one number
per branch is SkipInit (De and Smith 2020, arXiv 2002.10444), which was not read for this file, and
whose branches have no norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.placements.base import INPUT, LayerPlace, Placement, register_placement


@register_placement(
    "rezero",
    equation="x + a f(x),  a = 0 at the start",
    paper="Bachlechner et al. 2020, ReZero",
    paper_read=False,
)
class ReZero(Placement):
    """No norm, and one learned number per layer.

    Attributes:
        a: the weight of every branch of the layer, (1,).
    """

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.a = nn.Parameter(torch.zeros(1))

    @classmethod
    def refuses(cls, initialization: str) -> str:
        if initialization in ("fixup", "fixup-released"):
            return (
                "every branch and its weight a start at 0, so neither ever has a nonzero gradient"
            )
        return ""

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        return x + self.a * fx


@register_placement(
    "rezero-pre",
    equation="x + a f(norm(x)),  a = 0 at the start",
    paper="the gate of Bachlechner et al. 2020 on pre-norm",
    paper_read=False,
)
class ReZeroPre(ReZero):
    """Pre-norm with ReZero's learned number per layer."""

    norms = (INPUT,)
    final_norm = True
