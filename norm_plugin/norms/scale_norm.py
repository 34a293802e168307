"""ScaleNorm (Nguyen and Salazar 2019, "Transformers without Tears", scaled l2 normalization).

    y = g * x / ||x||,    ||x||^2 = sum_c x_c^2 + eps    over the C channels of one position

g is one learned number per norm. It starts at sqrt(C), where y equals RMSNorm without a gain.

The paper could not be read. The formula and the start of g are those of its released code.
Differences from that code: it has no eps, and bounds ||x|| from below by 1e-5. The gradient at a
row of zeros is then g / 1e-5, which overflows float16. With eps inside the root it is g /
sqrt(eps); where ||x|| is near sqrt(C), the two forms agree to the precision of float32. The
paper's FixNorm, a fixed length for word embeddings, is not included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm


def unit_length(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(sum_c x_c^2 + eps) over the last dimension. x: (..., C)."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + eps)


@register_norm(
    "scalenorm",
    formula="g * x / length(x)",
    paper="Nguyen and Salazar 2019, scaled l2 normalization",
    released="a length of at least 1e-5 in place of eps",
    paper_read=False,
)
class ScaleNorm(Norm):
    """Scale every position to one learned length ``g``.

    Options:
        eps: added inside the root, against division by zero
    """

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps
        self.g = nn.Parameter(torch.full((1,), math.sqrt(dim)))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return unit_length(x, self.eps) * self.g.to(x.dtype)
