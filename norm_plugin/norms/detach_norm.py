"""DetachNorm (Xu et al. 2019, "Understanding and Improving Layer Normalization", section 3).

    y = (x - mu) / sigma      forward as in layernorm-simple: mu, sigma over the C channels of
                              one position, sigma^2 = mean_c (x_c - mu)^2 + eps

with statistics taken as constants in the backward pass. For the upstream gradient g = dL/dy:

    detachnorm        mu and sigma constant    dL/dx = g / sigma
    detachnorm-mean   mu constant              dL/dx = (g - y mean_c(g y)) / sigma
    detachnorm-std    sigma constant           dL/dx = (g - mean_c g) / sigma

The paper uses them to measure what the derivatives of LayerNorm's statistics contribute. In its
Table 3, detachnorm-std is worse than layernorm-simple, or diverges, in translation and language
modeling; it is better on RT, SST5, MNIST and parsing. The standard deviation is held constant here,
not the variance; the gradient is the same. There are no parameters.

The released code differs: it takes the unbiased standard deviation and adds eps outside the
root. This file keeps the forward pass of layernorm-simple, so that the two differ in the backward
pass only.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm


def detach_norm(x: Tensor, eps: float, detach_mean: bool, detach_std: bool) -> Tensor:
    """Return (x - mu) / sigma with mu, sigma or both constant for the gradient. x, y: (..., C)."""
    mu = x.mean(dim=-1, keepdim=True)
    # The derivative of sigma does not depend on that of mu, since x - mu sums to zero
    centered = x - (mu.detach() if detach_mean else mu)
    sigma = (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return centered / (sigma.detach() if detach_std else sigma)


@register_norm(
    "detachnorm",
    formula="(x - sg[mu]) / sg[sigma]",
    paper="Xu et al. 2019, section 3",
    released="unbiased std, eps outside the root",
)
class DetachNorm(Norm):
    """LayerNorm without parameters whose mean and standard deviation carry no gradient.

    Options:
        eps: added inside the root, against division by zero
    """

    exact_gradient: ClassVar[bool] = False
    detach_mean: ClassVar[bool] = True
    detach_std: ClassVar[bool] = True

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return detach_norm(x, self.eps, self.detach_mean, self.detach_std)


@register_norm(
    "detachnorm-mean",
    formula="(x - sg[mu]) / sigma",
    paper="Xu et al. 2019, section 3",
    released="unbiased std, eps outside the root",
)
class DetachNormMean(DetachNorm):
    """LayerNorm without parameters whose mean carries no gradient.

    Options:
        eps: added inside the root, against division by zero
    """

    detach_std: ClassVar[bool] = False


@register_norm(
    "detachnorm-std",
    formula="(x - mu) / sg[sigma]",
    paper="Xu et al. 2019, section 3",
    released="unbiased std, eps outside the root",
)
class DetachNormStd(DetachNorm):
    """LayerNorm without parameters whose standard deviation carries no gradient.

    Options:
        eps: added inside the root, against division by zero
    """

    detach_mean: ClassVar[bool] = False
