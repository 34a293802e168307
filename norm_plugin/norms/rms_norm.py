"""RMSNorm (Zhang and Sennrich 2019, Eq. 4).

    y = gamma * x / rms,    rms^2 = mean_c x_c^2 + eps    over the C channels of one position

``gain`` says what the parameter ``weight`` is: with ``w`` it is gamma itself, which starts at 1;
with ``1+w`` gamma = 1 + weight, and weight starts at 0, as in Gemma and Qwen3-Next. The forward
pass and the gradients are the same. Weight decay, and any optimizer whose step depends on the size
of a parameter, differ: decay draws gamma to 0 under ``w`` and to 1 under ``1+w``.

The paper's optional offset is omitted, as in the models that use RMSNorm.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm


def divide_by_rms(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean_c x_c^2 + eps) over the last dimension. x: (..., C)."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


@register_norm(
    "rmsnorm",
    formula="gamma * x / rms(x)",
    paper="Zhang and Sennrich 2019, Eq. 4",
    released="has an optional offset",
)
class RMSNorm(Norm):
    """Divide by the root mean square over channels, then apply a gain; no offset.

    Options:
        eps: added inside the root, against division by zero
        gain: the gain of a channel: w, which starts at 1, or 1+w, where w starts at 0; weight
            decay draws w to 0
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, gain: Literal["w", "1+w"] = "w") -> None:
        super().__init__(dim)
        self.eps, self.weight_offset = eps, float(gain == "1+w")
        self.weight = nn.Parameter(torch.full((dim,), 1 - self.weight_offset))

    def gain(self) -> Tensor:
        """Return gamma, (C,), in float32 or wider."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        return weight + self.weight_offset if self.weight_offset else weight

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return divide_by_rms(x, self.eps) * self.gain().to(x.dtype)
