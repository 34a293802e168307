"""DyT and Derf: a bounded function in place of normalization.

Dynamic Tanh (Zhu et al. 2025, "Transformers without Normalization", 2503.10622):

    y = gamma * tanh(alpha x) + beta

alpha is one learned number for each norm. gamma and beta are per channel and start at 1 and 0.
There are no statistics: a bounded function replaces the normalization.

alpha starts at 0.5, the default of the released code. Only the abstract of the paper could be read.
In language models, the released code of its successor, Derf, starts alpha at
different values for attention, feed-forward and final norms, and scales the embeddings by a learned
number where fairseq uses sqrt(C). Here ``alpha_init`` is the same at all sites.

Derf, Dynamic erf (Chen et al. 2025, "Stronger Normalization-Free Transformers", 2512.10938):

    y = gamma * erf(alpha x + s) + beta                                          (Eq. 10)

alpha and s are one learned number each; s is the parameter ``shift``. That paper could not be read.
In its released code alpha starts at 0.5 and s at 0. Its language model starts alpha at 1, and
scales the embeddings as above.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import AffineNorm
from norm_plugin.norms.base.registry import register_norm


@register_norm(
    "dyt",
    formula="gamma * tanh(alpha x) + beta",
    paper="Zhu et al. 2025, arXiv 2503.10622",
    released="in language models alpha starts at another value in each kind of site",
    paper_read=False,
)
class DynamicTanh(AffineNorm):
    """Apply a bounded function to each value, in place of normalization.

    Options:
        eps: has no effect; accepted so that one sweep can set it for every norm
        alpha_init: the initial value of the learned slope alpha
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, alpha_init: float = 0.5) -> None:
        super().__init__(dim)
        if not (math.isfinite(alpha_init) and alpha_init > 0):
            raise ValueError(f"alpha_init is {alpha_init}; it must be positive and finite")
        self.alpha = nn.Parameter(torch.full((1,), float(alpha_init)))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return self.affine(torch.tanh(self.alpha.to(x.dtype) * x))


@register_norm(
    "derf",
    formula="gamma * erf(alpha x + s) + beta",
    paper="Chen et al. 2025, arXiv 2512.10938, Eq. 10",
    released="in language models alpha starts at another value in each kind of site",
    paper_read=False,
)
class DynamicErf(DynamicTanh):
    """Apply a bounded function with a learned shift to each value, in place of normalization.

    Options:
        eps: has no effect; accepted so that one sweep can set it for every norm
        alpha_init: the initial value of the learned slope alpha
    """

    def __init__(self, dim: int, *, eps: float = 1e-5, alpha_init: float = 0.5) -> None:
        super().__init__(dim, alpha_init=alpha_init)
        self.shift = nn.Parameter(torch.zeros(1))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return self.affine(torch.erf(self.alpha.to(x.dtype) * x + self.shift.to(x.dtype)))
