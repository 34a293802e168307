"""Layer-scale, which the PowerNorm paper puts before its norms (Shen et al. 2020, section 4).

    x / sqrt(mean_c x_c^2 + eps)    over the channels of one position: all C of them (the
                                    paper), or each of G groups by itself (the released code,
                                    G the number of attention heads)

It has no parameters and no state, and autograd has its exact gradient.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.norms.base.inference import CannotFold
from norm_plugin.norms.rms_norm import divide_by_rms


def layer_scale(x: Tensor, groups: int, eps: float) -> Tensor:
    """Scale each of ``groups`` groups of channels; 0 leaves ``x`` as it is. x: (..., C)."""
    if groups == 0:
        return x
    return divide_by_rms(x.unflatten(-1, (groups, -1)), eps).flatten(-2)


def check_layer_scale(groups: int, dim: int) -> None:
    """Raise ValueError unless ``groups`` is 0 or divides ``dim``."""
    if groups < 0 or (groups and dim % groups):
        raise ValueError(f"layer_scale_groups is {groups}; it must be 0 or divide {dim}")


def refuse_layer_scale(groups: int) -> None:
    """Raise CannotFold if there is a layer-scale: with it, the gain depends on the position."""
    if groups:
        raise CannotFold("its layer-scale divides each position by the position's own scale")
