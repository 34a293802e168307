"""Admin: norm(omega * x + f(x)), with omega set from the branches' variances in the first batch.

omega is a learned vector per branch, whose channels all start at the same number. With the branches
of a stack numbered from 1, and variances over all values of the first training batch, padding
included:

    omega_1^2     = 1
    omega_(i+1)^2 = Var[omega_i x_i] + Var[f_i(x_i)]

so that omega_i^2 is about 1 plus the variances of the branches before i.

Source: Liu et al. 2020, "Understanding the Difficulty of Training Transformers", arXiv 2004.08249,
and the authors' code (LiyuanLucasLiu/Transformer-Clinic, transformer_layer.py), which was read, and
from which the recursion is taken. The paper's text was not read. According to secondary sources it
sets omega_i^2 to the sum of Var[f_j], j < i, measured in a forward with omega = 1. The authors
measure in a separate run of one update, and then start a second run. Here the first training
forward sets each omega just before its use, so that one run does both. LayerDrop drops no layer in
that forward.

omega is stored as a constant initial value plus a learned change that starts at 0: an optimizer may
hold a copy of its parameters, as fairseq's for float16 does, and would overwrite a value that is
written into them later.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.workers import sum_over_workers, worker_count
from norm_plugin.placements.base import SUM, LayerPlace, Placement, register_placement


@register_placement(
    "admin",
    equation="norm(omega * x + f(x)),  omega from the variances of the branches before",
    paper="Liu et al. 2020, Admin",
    paper_read=False,
)
class Admin(Placement):
    """Post-norm that multiplies the stream by omega, initialized from the first training batch.

    Attributes:
        change: the learned part of omega, per branch, (C,).
        start: the constant part, one number per branch, (branches,).
        variance: (), that of the last sum of the layer: the square of the next layer's omega.
        measured: (), whether a training batch has set these.
    """

    norms = (SUM,)
    needs_bounded_norms = (
        "omega_i^2 is the variance of the previous sum, which without a bounded norm squares from "
        "branch to branch"
    )
    start: Tensor
    variance: Tensor
    measured: Tensor

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.change = nn.ParameterDict(
            {branch: nn.Parameter(torch.zeros(place.dim)) for branch in place.branches}
        )
        self.register_buffer("start", torch.ones(len(place.branches)))
        self.register_buffer("variance", torch.ones(()))
        self.register_buffer("measured", torch.zeros((), dtype=torch.long))
        self.below: tuple[Placement, ...] = ()  # in a tuple, so that torch does not register it

    def set_layer_below(self, below: Placement) -> None:
        self.below = (below,)

    def needs_whole_stack(self) -> bool:
        return not self.measured.item()

    def begin(self, x: Tensor) -> Tensor:
        self.measuring = self.training and not self.measured.item()
        if self.measuring:
            for below in self.below:
                assert isinstance(below, Admin)
                self.variance.copy_(below.variance)
        return x

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        index = self.place.branches.index(branch)
        if self.measuring:
            self.measure(index, x, fx)
        return (self.start[index] + self.change[branch]) * x + fx

    @torch.no_grad()
    def measure(self, index: int, x: Tensor, fx: Tensor) -> None:
        """Set omega's start for branch ``index``, and the variance of the sum. x, fx: (T, B, C)."""
        self.start[index] = self.variance.sqrt()
        omega_x = self.start[index] * x
        both = omega_x.float().var(correction=0) + fx.float().var(correction=0)
        self.variance.copy_(sum_over_workers(both) / worker_count())

    def end(self, x: Tensor) -> Tensor:
        if self.measuring:
            self.measured.fill_(1)
        return x
