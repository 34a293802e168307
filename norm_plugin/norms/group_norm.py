"""GroupNorm (Wu and He 2018, Eq. 1 and 7), over groups of channels of one position.

    y = gamma * (x - mu_i) / sigma_i + beta,    mu_i, sigma_i over the C/G channels of group i,
    sigma_i^2 = mean_{c in i} (x_c - mu_i)^2 + eps    (biased, eps inside the root)

gamma and beta are per channel. With one group it is LayerNorm.

Difference from the paper: its statistics of an image also run over height and width. Here they are
within one position; over a sentence they would include padding, and a decoder would see its
future. A group therefore needs two channels or more: with one (the paper's instance norm) y would
be beta for every x. The paper's G = 32 does not divide the width of small Transformers into groups
that are large enough. The default is 4, the number of heads of the smallest models here.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.norms.base.contract import AffineNorm
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.layer_norm import standardize


def standardize_groups(x: Tensor, groups: int, eps: float) -> Tensor:
    """Return (x - mu_i) / sigma_i over each of ``groups`` groups of channels. x: (..., C)."""
    return standardize(x.unflatten(-1, (groups, x.size(-1) // groups)), eps).flatten(-2)


@register_norm(
    "groupnorm",
    formula="gamma * (x - mu_i) / sigma_i + beta,  i: the group of the channel",
    paper="Wu and He 2018, Eq. 1 and 7",
    released="statistics run over the positions of an image too; 32 groups",
)
class GroupNorm(AffineNorm):
    """Standardize each group of channels of a position separately.

    Options:
        eps: added inside the root, against division by zero
        groups: number of groups; it must divide the width into groups of two channels or more
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
