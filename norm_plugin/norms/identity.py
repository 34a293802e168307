"""No normalization, y = x: an ablation that the AdaNorm paper and later ones report."""

from __future__ import annotations

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import InferenceAffine, Norm
from norm_plugin.norms.base.registry import register_norm


@register_norm(
    "none",
    formula="x",
    paper="the baseline of Xu et al. 2019, Tables 1 and 2",
    released="none",
)
class Identity(Norm):
    """Return the input unchanged.

    Options:
        eps: has no effect; accepted so that one sweep can set it for every norm
    """

    bounded = False

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return x

    def inference_map(self) -> InferenceAffine:
        ones = torch.ones(self.dim, dtype=torch.float64)
        return InferenceAffine(ones, torch.zeros_like(ones))
