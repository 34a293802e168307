"""SiameseNorm: two streams with shared branches, x as under post-norm and y as under pre-norm.

    x  = norm_x(x)
    z  = f(norm_in(x + norm_y(y)))
    x' = x + z / sqrt(2 l),    y' = y + z

Both streams start from the embeddings, l is the number of the layer from 1, and the stack returns
norm(norm_1(x) + norm_2(y)). No two of these norms share parameters.

Source: Li et al. 2026, arXiv 2602.08064. The paper was not read for this file, which follows the
authors' code (Qwen-Applications/SiameseNorm, deit-model-siamesenorm.py). Its layers have two
branches; an attention over an encoder is treated here as the others are. Its form "hybrid-pre",
which leaves norm_x of the attention out, is not implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from norm_plugin.placements.base import (
    INPUT,
    STREAM,
    NormOfBranch,
    Placement,
    Stream,
    register_placement,
)

OTHER = "other"  # norm_y


@register_placement(
    "siamese",
    equation="x = norm_x(x), z = f(norm_in(x + norm_y(y))), x' = x + z / sqrt(2 l), y' = y + z",
    paper="Li et al. 2026, SiameseNorm",
    paper_read=False,
)
class Siamese(Placement):
    """A normalized and a plain stream; each branch reads their sum and is added to both."""

    norms = (STREAM, OTHER, INPUT)
    streams = 2
    final_norm = True
    final_norms = ("first", "second")

    def read(self, x: Stream, branch: str, norm: NormOfBranch) -> tuple[Stream, Tensor]:
        return x, x[0] + norm(branch, OTHER, x[1])

    def join(self, x: Stream, fx: Tensor, branch: str) -> Stream:
        return x[0] + fx / (2 * self.place.index) ** 0.5, x[1] + fx

    @staticmethod
    def before_final_norm(
        streams: Sequence[Tensor], norm: Callable[[str, Tensor], Tensor]
    ) -> Tensor:
        x, y = streams
        return norm("first", x) + norm("second", y)
