"""RMS pre-scaling, which the PowerNorm paper calls layer-scale (Shen et al. 2020, VII-A).

It scales the input of a norm. CaiT's layer-scale is another thing: a placement of this plugin.

    x / sqrt(mean_c x_c^2 + eps)

The mean is over all C channels of a position in the paper. In the released code it is over each of
G groups of channels, with G the number of attention heads.

It has no parameters and no state. Autograd computes its exact gradient.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.norms.base.contract import CannotFold
from norm_plugin.norms.rms_norm import divide_by_rms


def rms_prescale(x: Tensor, groups: int, eps: float) -> Tensor:
    """Divide each of ``groups`` groups of channels by its RMS; 0 groups: no change. x: (..., C)."""
    if groups == 0:
        return x
    return divide_by_rms(x.unflatten(-1, (groups, -1)), eps).flatten(-2)


def check_rms_prescale(groups: int, dim: int) -> None:
    """Raise ValueError unless ``groups`` is 0 or divides ``dim``."""
    if groups < 0 or (groups and dim % groups):
        raise ValueError(f"layer_scale_groups is {groups}; it must be 0 or divide {dim}")


def refuse_rms_prescale(groups: int) -> None:
    """Raise CannotFold if the input is pre-scaled: the gain then depends on the position."""
    if groups:
        raise CannotFold("its RMS pre-scaling divides each position by the position's own RMS")
