"""ResiDual: two streams, one post-norm and one without norms.

    x' = norm(x + f(x))
    d' = d + f(x)
    the stack returns x_L + norm(d_L)

Source: Xie et al. 2023, arXiv 2304.14802. Both streams start from the embeddings. The
paper was not read for this file; the authors' code (microsoft/ResiDual) was, and agrees. It can
weigh the streams by constants, which are 1 by default, and its final norm has an eps of 1e-7; here
each norm has its own eps everywhere.

Between layers the two streams are side by side in one tensor (T, B, 2C), so that what repeats the
forward of a layer, as ``--checkpoint-activations`` does, has the gradients of both. The hidden
states of layers that fairseq returns beside the output have both streams too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from norm_plugin.placements.base import FINAL, SUM, Placement, register_placement


@register_placement(
    "residual",
    equation="x' = norm(x + f(x)),  d' = d + f(x);  after the stack x + norm(d)",
    paper="Xie et al. 2023, ResiDual",
    paper_read=False,
)
class ResiDual(Placement):
    """Post-norm, and a second stream d that collects the branches without any norm."""

    norms = (SUM,)
    final_norm = True

    def begin(self, x: Tensor) -> Tensor:
        embeddings = x.size(-1) == self.place.dim
        x, self.d = (x, x) if embeddings else x.chunk(2, dim=-1)
        return x

    def join(self, x: Tensor, fx: Tensor, branch: str) -> Tensor:
        self.d = self.d + fx
        return x + fx

    def end(self, x: Tensor) -> Tensor:
        both = torch.cat([x, self.d], dim=-1)
        del self.d  # a model that holds a tensor with a history cannot be copied
        return both

    @staticmethod
    def before_final_norm(x: Tensor, dim: int) -> Tensor:
        return x[..., -dim:]

    @staticmethod
    def after_final_norm(x: Tensor, y: Tensor) -> Tensor:
        return x[..., : y.size(-1)] + y

    @classmethod
    def why_it_stays(cls, position: str) -> str:
        if position == FINAL:
            return "its output is added to the other stream, x"
        return super().why_it_stays(position)
