"""LayerNorm (Ba, Kiros and Hinton 2016): Eq. 3 for mu and sigma, Eq. 4 for the gain and offset.

    y = gamma * (x - mu) / sigma + beta,    mu, sigma over the C channels of one position,
    sigma^2 = mean_c (x_c - mu)^2 + eps     (biased, eps inside the root)

``layernorm-simple`` (Xu et al. 2019, section 3.1) drops gamma and beta.

Both call torch's own kernel, as stock fairseq does, so ``layernorm`` is bit-equal to it. That
kernel computes its statistics in float32 for half precision input and casts back at its end.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from norm_plugin.norms.base.contract import AffineNorm, Norm
from norm_plugin.norms.base.registry import register_norm


def standardize(x: Tensor, eps: float) -> Tensor:
    """Return (x - mu) / sigma over the last dimension, with its exact gradient. x: (..., C)."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)


@register_norm(
    "layernorm",
    formula="gamma * (x - mu) / sigma + beta",
    paper="Ba et al. 2016, Eq. 3 and 4",
    released="none: torch's own kernel, as in stock fairseq",
)
class LayerNorm(AffineNorm):
    """Standardize the channels of each position, then apply a learned gain and offset.

    Options:
        eps: added inside the root, against division by zero
    """

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a subclass with a ``normalize`` of its own compute by it, as any other norm does."""
        super().__init_subclass__(**kwargs)
        if "normalize" in vars(cls) and "forward" not in vars(cls):
            setattr(cls, "forward", Norm.forward)  # noqa: B010 -- mypy knows methods as constants

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
    ) -> Tensor:
        """Normalize ``x`` as :meth:`Norm.forward` does, but leave dtypes to torch, as fairseq does.

        Under autocast, torch returns float32 for half-precision input; stock models rely on it.
        """
        return F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)


@register_norm(
    "layernorm-simple",
    formula="(x - mu) / sigma",
    paper="Xu et al. 2019, section 3.1",
    released="none",
)
class LayerNormSimple(Norm):
    """Standardize the channels of each position; no parameters.

    Options:
        eps: added inside the root, against division by zero
    """

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(dim)
        self.eps = eps

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return standardize(x, self.eps)
