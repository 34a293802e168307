"""Hyper-connections: n streams, mixed by learned weights before and after each branch.

With the streams h_1, ..., h_n, all the embeddings at the start,

    z    = sum_i alpha_i0 h_i
    h'_j = sum_i alpha_ij h_i + beta_j f(norm(z))

and the stack returns norm(h_1 + ... + h_n). alpha and beta are learned for each branch. At the
start, branch k of the stack, from 0, reads stream k mod n: alpha_i0 = 1 for that i, else 0;
alpha_ij = 1 for i = j, else 0; and beta = 1. So at first all streams equal that of ``pre``. In the
dynamic form the weights of a position depend on its streams:

    alpha_ij + s tanh(norm(h_i) . w_j),    beta_i + s' tanh(norm(h_i) . w')

with learned w, from 0, and s, from 0.01. The norm is one of the placement's own. n = 4.

Source: Zhu et al. 2024, arXiv 2409.19606, Eq. 1 to 14 and Algorithm 2. Differences from the paper:
there w has weight decay, alpha and beta have none, where fairseq's ``adam`` decays all of them and
``adam_matrix_decay`` alpha, too; it scales the initial weights of the last map of each branch by
sqrt(n), here they are fairseq's; it has no attention over an encoder, which is treated here as the
other branches are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from norm_plugin.placements.base import (
    INPUT,
    LayerPlace,
    NormOfBranch,
    Placement,
    Stream,
    register_placement,
)


@register_placement(
    "hyper",
    equation="z = sum a_i0 h_i,  h'_j = sum a_ij h_i + b_j f(norm(z))",
    paper="Zhu et al. 2024, Hyper-Connections, static",
)
class HyperConnections(Placement):
    """Pre-norm on four streams, with learned weights between them.

    Attributes:
        alpha: per branch, (n, 1 + n).
        beta: per branch, (n,).
    """

    norms: ClassVar[tuple[str, ...]] = (INPUT,)
    streams = 4
    final_norm = True

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.alpha, self.beta = nn.ParameterDict(), nn.ParameterDict()
        for number, branch in enumerate(place.branches):
            k = (place.index - 1) * len(place.branches) + number
            identity = torch.eye(self.streams)
            read = identity[:, k % self.streams]
            self.alpha[branch] = nn.Parameter(torch.cat([read.unsqueeze(1), identity], dim=1))
            self.beta[branch] = nn.Parameter(torch.ones(self.streams))

    def weights(self, streams: Tensor, branch: str, norm: NormOfBranch) -> tuple[Tensor, Tensor]:
        """Return alpha, (..., n, 1 + n), and beta, (..., n), given the streams, (T, B, n, C)."""
        return self.alpha[branch], self.beta[branch]

    def read(self, x: Stream, branch: str, norm: NormOfBranch) -> tuple[Stream, Tensor]:
        streams = torch.stack(x, dim=-2)
        alpha, beta = self.weights(streams, branch, norm)
        z, *mixed = (alpha.transpose(-1, -2) @ streams).unbind(-2)
        return (*mixed, beta), z

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        *mixed, beta = x
        return tuple(h + weight * fx for h, weight in zip(mixed, beta.split(1, dim=-1)))

    @staticmethod
    def before_final_norm(
        streams: Sequence[Tensor], norm: Callable[[str, Tensor], Tensor]
    ) -> Tensor:
        return torch.stack(list(streams)).sum(0)


@register_placement(
    "hyper-dynamic",
    equation="as hyper;  a_ij + s tanh(norm(h_i) . w_j),  b_i + s' tanh(norm(h_i) . w')",
    paper="Zhu et al. 2024, Hyper-Connections, dynamic",
)
class DynamicHyperConnections(HyperConnections):
    """``hyper`` with weights that depend on the streams of a position.

    Attributes:
        mix: per branch, the w of alpha and then that of beta, (C, n + 2).
        scale: per branch, the s of alpha and that of beta, (2,).
    """

    norms = (INPUT, "streams")

    def __init__(self, place: LayerPlace) -> None:
        super().__init__(place)
        self.mix, self.scale = nn.ParameterDict(), nn.ParameterDict()
        for branch in place.branches:
            self.mix[branch] = nn.Parameter(torch.zeros(place.dim, self.streams + 2))
            self.scale[branch] = nn.Parameter(torch.full((2,), 0.01))

    def weights(self, streams: Tensor, branch: str, norm: NormOfBranch) -> tuple[Tensor, Tensor]:
        normed = [norm(branch, "streams", h) for h in streams.unbind(-2)]
        moved = torch.tanh(torch.stack(normed, dim=-2) @ self.mix[branch])
        alpha, beta = super().weights(streams, branch, norm)
        s = self.scale[branch]
        return alpha + s[0] * moved[..., :-1], beta + s[1] * moved[..., -1]
