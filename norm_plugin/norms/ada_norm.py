"""AdaNorm (Xu et al. 2019, "Understanding and Improving Layer Normalization", section 4).

    y = (x - mu) / sigma
    z = C (1 - k y) * y       with C (1 - k y) taken as a constant in the backward pass

so that dL/dx is LayerNorm's gradient for the upstream gradient C (1 - k y) * dL/dz. There are
no parameters. The paper sets k = 0.1 and C = 2 on WMT14 En-De, IWSLT14 De-En and MNIST, 1 on
IWSLT15 En-Vi, Enwiki8 and PTB, 0.3 on RT and SST5, with pre-norm and Kaiming initialisation.

The released code differs: it takes the unbiased standard deviation and adds eps outside the
root, and its flag reaches only the two norms at the end of the stacks. This file follows the
paper. Statistics are in float32 at least; the cast back comes after the product.
"""

from __future__ import annotations

import math
from typing import Optional

from torch import Tensor

from norm_plugin.norms._contract import Norm
from norm_plugin.norms._registry import register_norm
from norm_plugin.norms.layer_norm import standardize


def ada_norm(x: Tensor, scale: float, k: float, eps: float) -> Tensor:
    """z = sg[C (1 - k y)] * y with C = ``scale``. x, z: (..., C)."""
    y = standardize(x, eps)
    return (scale * (1 - k * y)).detach() * y


@register_norm(
    "adanorm",
    formula="sg[C (1 - k y)] * y,  y = (x - mu) / sigma",
    paper="Xu et al. 2019, section 4",
)
class AdaNorm(Norm):
    """LayerNorm without parameters, rescaled by a bounded function of its own output.

    Options:
        eps: added to the variance, inside the root
        scale: the constant C; the paper takes 2 on De-En and En-De, 1 on En-Vi, 0.3 on RT
        k: slope of the rescaling; the paper takes 0.1
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, scale: float = 2.0, k: float = 0.1) -> None:
        super().__init__(dim)
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale is {scale}; it must be positive and finite")
        self.eps, self.scale, self.k = eps, scale, k

    def normalize(self, x: Tensor, valid: Optional[Tensor]) -> Tensor:
        return ada_norm(x, self.scale, self.k, self.eps)
