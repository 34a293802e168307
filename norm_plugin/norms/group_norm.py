"""GroupNorm (Wu and He 2018, Eq. 1 and 7), over groups of channels of one position.

    y = gamma * (x - mu_i) / sigma_i + beta,    mu_i, sigma_i over the C/G channels of group i,
    sigma_i^2 = mean_{c in i} (x_c - mu_i)^2 + eps    (biased, eps inside the root)

gamma and beta are per channel. With one group it is LayerNorm.

Where this parts from the paper: there, the statistics of an image also run over its height and
width. Here they stay within one position: over a sentence they would let a decoder see its
future and padding its neighbours. For the same reason a group of a single channel, the paper's
instance norm, is refused: its output would be beta whatever x is. The paper's G = 32 suits few
widths of a Transformer; the default is 4, the heads of the smallest models here.

Statistics are in float32 at least; the cast back comes after gamma and beta.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.norms.base.contract import AffineNorm
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.layer_norm import standardize


def standardize_groups(x: Tensor, groups: int, eps: float) -> Tensor:
    """(x - mu_i) / sigma_i over each of ``groups`` groups of channels. x: (..., C)."""
    return standardize(x.unflatten(-1, (groups, x.size(-1) // groups)), eps).flatten(-2)


@register_norm(
    "groupnorm",
    formula="gamma * (x - mu_i) / sigma_i + beta,  i: the group of the channel",
    paper="Wu and He 2018, Eq. 1 and 7",
    released="statistics run over the positions of an image too; 32 groups",
)
class GroupNorm(AffineNorm):
    """LayerNorm over each group of channels by itself.

    Options:
        eps: added to the variances, inside the root
        groups: number of groups, each of two channels or more; it must divide the width
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, groups: int = 4) -> None:
        super().__init__(dim)
        if groups < 1 or dim % groups or dim < 2 * groups:
            raise ValueError(
                f"groups is {groups}; it must divide {dim} into groups of two channels or more"
            )
        self.eps, self.groups = eps, groups

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return self.affine(standardize_groups(x, self.groups, self.eps))
