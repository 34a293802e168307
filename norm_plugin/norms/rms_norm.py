"""RMSNorm (Zhang and Sennrich 2019, Eq. 4).

    y = gamma * x / rms,    rms^2 = mean_c x_c^2 + eps    over the C channels of one position

The paper's optional offset is left out, as in the models that use RMSNorm. Everything is computed
in float32 or wider. The cast back comes last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm


def divide_by_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean_c x_c^2 + eps) over the last dimension. x: (..., C)."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


@register_norm(
    "rmsnorm",
    formula="gamma * x / rms(x)",
    paper="Zhang and Sennrich 2019, Eq. 4",
    released="has an optional offset",
)
class RMSNorm(Norm):
    """Root mean square over channels, with a gain and no offset.

    Options:
        eps: added to the mean square, inside the root
    """

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return divide_by_rms(x, self.eps) * self.weight.to(x.dtype)
