"""SeeDNorm (2025, arXiv 2510.22777): RMSNorm whose gain depends on the input.

    y = (tanh(x . b) * alpha + gamma) * x / rms(x),    rms^2 = mean_c x_c^2 + eps

over the C channels of one position. b, alpha and gamma are per channel. The paper's form with
several heads divides x and b among them: the dot product of head j scales alpha in the channels of
head j. The gain is bounded by |alpha| + |gamma|, and so is the output.

b starts at 0, gamma and alpha at 1: y then equals RMSNorm, and of alpha and b only b has a nonzero
gradient at first. The paper uses one head in language models and 16 in vision, and applies weight
decay to alpha and b. Its text could not be read: the formula, the heads and the initial values are
those on which a summary of it and a third-party implementation for Megatron-LM agree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.rms_norm import divide_by_rms


def dynamic_gain(x: Tensor, b: Tensor, heads: int) -> Tensor:
    """Return tanh(x_j . b_j) of each head j at its channels, (..., C). x: (..., C); b: (C,)."""
    products = (x * b).unflatten(-1, (heads, -1))
    return torch.tanh(products.sum(dim=-1, keepdim=True)).expand_as(products).flatten(-2)


@register_norm(
    "seednorm",
    formula="(tanh(x . b) alpha + gamma) * x / rms(x)",
    paper="SeeDNorm 2025, arXiv 2510.22777",
    released="not read",
    paper_read=False,
)
class SeeDNorm(Norm):
    """RMSNorm whose gain depends on the input, by one bounded number per position and head.

    Options:
        eps: added inside the root, against division by zero
        alpha_init: the initial value of alpha, the weight of the input-dependent part of the gain
        gain_heads: number of groups of channels, each with its own dot product
    """

    def __init__(
        self, dim: int, *, eps: float = 1e-5, alpha_init: float = 1.0, gain_heads: int = 1
    ) -> None:
        super().__init__(dim)
        if gain_heads < 1 or dim % gain_heads:
            raise ValueError(f"gain_heads is {gain_heads}; it must divide the {dim} channels")
        self.eps, self.gain_heads = eps, gain_heads
        self.weight = nn.Parameter(torch.ones(dim))
        self.alpha = nn.Parameter(torch.full((dim,), float(alpha_init)))
        self.b = nn.Parameter(torch.zeros(dim))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        shift = dynamic_gain(x, self.b.to(x.dtype), self.gain_heads) * self.alpha.to(x.dtype)
        return (shift + self.weight.to(x.dtype)) * divide_by_rms(x, self.eps)
