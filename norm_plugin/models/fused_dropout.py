"""``--norm-fused-dropout on``: the dropout of a branch is left to its residual sum."""

from __future__ import annotations

from fairseq.modules import FairseqDropout
from torch import Tensor

from norm_plugin.kernels import ByKernels, resolve
from norm_plugin.kernels.dropout import dropout_sum
from norm_plugin.models.flags import FUSED_DROPOUT, flag_of
from norm_plugin.placements import OUTPUT, Placement, overrides


class DeferredDropout(FairseqDropout, ByKernels):
    """In place of ``dropout``, after each branch of a layer: does nothing until :meth:`sum`.

    Like a norm it computes by the kernels that are there, until ``set_kernels`` says otherwise.
    """

    def __init__(self, dropout: FairseqDropout) -> None:
        super().__init__(dropout.p, dropout.module_name)
        self.kernels = resolve(None)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x, the output of a branch, as it is."""
        return x

    def sum(self, stream: Tensor, branch: Tensor) -> Tensor:
        """stream + dropout(branch), both (T, B, C)."""
        if self.p > 0 and (self.training or self.apply_during_inference):
            return dropout_sum(stream, branch, self.p, self.kernels)
        return stream + branch


def fuse_dropout(dropout: FairseqDropout, placement: Placement) -> DeferredDropout:
    """The dropout of a layer with this placement, to be computed with the residual sum.

    Raises:
        ValueError: the placement does something else between the dropout and the sum.
    """
    cls = type(placement)
    if overrides(cls, "join") or any(OUTPUT in cls.norms_of(b) for b in placement.place.branches):
        raise ValueError(
            f"{flag_of(FUSED_DROPOUT)} on needs branches that end in x + f, but this placement is "
            f"{cls.equation}: leave the flag out"
        )
    return DeferredDropout(dropout)
