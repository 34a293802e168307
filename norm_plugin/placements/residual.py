"""ResiDual: two streams, one post-norm and one without norms.

    x' = norm(x + f(x))
    d' = d + f(x)
    the stack returns x_L + norm(d_L)

Source: Xie et al. 2023, arXiv 2304.14802. Both streams start from the embeddings. The paper was not
read for this file; the authors' code (microsoft/ResiDual) was read, and agrees. It can weight the
streams by constants, which are 1 by default, and its final norm has an eps of 1e-7; here every norm
has its own eps.

The hidden states of layers that fairseq returns with the output contain both streams, concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from norm_plugin.placements.base import SUM, Placement, Stream, register_placement


@register_placement(
    "residual",
    equation="x' = norm(x + f(x)),  d' = d + f(x);  after the stack x + norm(d)",
    paper="Xie et al. 2023, ResiDual",
    paper_read=False,
)
class ResiDual(Placement):
    """Post-norm, and a second stream d that sums the branches without any norm."""

    norms = (SUM,)
    streams = 2
    final_norm = True

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        x, d = x
        return x + fx, d + fx

    @staticmethod
    def before_final_norm(
        streams: Sequence[Tensor], norm: Callable[[str, Tensor], Tensor]
    ) -> Tensor:
        return streams[1]

    @staticmethod
    def after_final_norm(streams: Sequence[Tensor], y: Tensor) -> Tensor:
        return streams[0] + y
