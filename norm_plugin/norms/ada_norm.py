"""AdaNorm (Xu et al. 2019, "Understanding and Improving Layer Normalization", section 4).

    y = (x - mu) / sigma
    z = C (1 - k y) * y       with C (1 - k y) taken as a constant in the backward pass

so that dL/dx is LayerNorm's gradient for the upstream gradient C (1 - k y) * dL/dz. There are
no parameters. The paper uses pre-norm, Kaiming initialization and k = 0.1. Its C is 2 on WMT14
En-De, IWSLT14 De-En and MNIST, 1 on IWSLT15 En-Vi, Enwiki8 and PTB, and 0.3 on RT and SST5.

``variant=paper`` standardizes as LayerNorm does, ``variant=released`` as the released code does:

    paper       sigma^2 = (1/C) sum_c (x_c - mu)^2 + eps
    released    sigma = s + eps,    s^2 = (1/(C - 1)) sum_c (x_c - mu)^2

where C is the number of channels. In the released code its flag changes only the final norms of
the two stacks, and k is fixed at 0.1. Here the variant applies at every site, and k is an option of
both variants.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm, register_released
from norm_plugin.norms.layer_norm import standardize


def standardize_as_released(x: Tensor, eps: float) -> Tensor:
    """Standardize ``x`` as the authors' released code does: (x - mu) / (s + eps), with unbiased s.

    Args:
        x: (..., C), with C >= 2.
        eps: added to the standard deviation, outside the root.

    Returns:
        (..., C), standardized over the last dimension.
    """
    centered = x - x.mean(dim=-1, keepdim=True)
    # At a constant row the norm is 0, where torch takes 0 as its derivative, as for x.std()
    s = torch.linalg.vector_norm(centered, dim=-1, keepdim=True) / math.sqrt(x.size(-1) - 1)
    return centered / (s + eps)


def ada_norm(y: Tensor, scale: float, k: float) -> Tensor:
    """Return z = sg[C (1 - k y)] * y with C = ``scale`` (Xu et al. 2019, section 4).

    Args:
        y: (..., C), the standardized input.
        scale: the constant C of the paper.
        k: the slope of the rescaling.

    Returns:
        (..., C).
    """
    return (scale * (1 - k * y)).detach() * y


@register_norm(
    "adanorm",
    formula="sg[C (1 - k y)] * y,  y = (x - mu) / sigma",
    paper="Xu et al. 2019, section 4",
    released=(
        "unbiased std, eps outside the root, at the two final norms "
        "only; the first two are `variant=released`"
    ),
)
class AdaNorm(Norm):
    """Standardize each position and rescale it by a bounded function of the result; no parameters.

    Options:
        eps: added inside the root, against division by zero; with variant=released to the deviation
        scale: the constant C; the paper takes 2 on De-En, En-De and MNIST, 1 on En-Vi, Enwik8 and
            parsing, 0.3 on RT and SST5
        k: slope of the rescaling; the paper takes 0.1
    """

    exact_gradient: ClassVar[bool] = False

    def __init__(self, dim: int, *, eps: float = 1e-5, scale: float = 2.0, k: float = 0.1) -> None:
        super().__init__(dim)
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale is {scale}; it must be positive and finite")
        self.eps, self.scale, self.k = eps, scale, k

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return ada_norm(standardize(x, self.eps), self.scale, self.k)


@register_released("adanorm", help="the paper's form, or that of its released code")
class ReleasedAdaNorm(AdaNorm):
    """AdaNorm that standardizes as the released code does."""

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **options)
        if dim < 2:
            raise ValueError(f"dim is {dim}; variant=released needs two channels or more")

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return ada_norm(standardize_as_released(x, self.eps), self.scale, self.k)
