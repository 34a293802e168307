"""The gradients of batch normalization and PN-V.

Shen et al. 2020 (PowerNorm), Lemmas 2 and 3 with Facts 1 and 2. With `g = dL/dx_hat` and means
over the positions of a channel,

    batch normalization   dL/dx = (g - mean(g) - x_hat mean(g x_hat)) / sigma_B
    PN-V                  dL/dx = (g - x_hat mean(g x_hat)) / psi_B

Equations 3 and 6 of the main text are meant to state the same in terms of dL/dy, but they put
`dL/dy / gamma` in the place of g. By Equations 2 and 5, `g = gamma dL/dy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.norms import build_norm
from papers.theory.claim import ROUNDING, Options, Row, cases, verdict
from papers.theory.models import through_norm

CASE = ("placement", "norm", "tokens")

GAINS = 0.5, 1.5
"""The range of the gain, drawn per channel; with a gain of 1, Eq. 3 and 6 would hold."""


def batch_norm_gradient(x: Tensor, g: Tensor) -> Tensor:
    """Return dL/dx by Lemma 2. x, g: (n, C)."""
    sigma = x.var(dim=0, correction=0).sqrt()
    x_hat = (x - x.mean(dim=0)) / sigma
    return (g - g.mean(dim=0) - x_hat * (g * x_hat).mean(dim=0)) / sigma


def pn_v_gradient(x: Tensor, g: Tensor) -> Tensor:
    """Return dL/dx by Lemma 3. x, g: (n, C)."""
    psi = x.square().mean(dim=0).sqrt()
    x_hat = x / psi
    return (g - x_hat * (g * x_hat).mean(dim=0)) / psi


LEMMAS: dict[str, tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = {
    "batchnorm": ("Lemma 2", "Eq. 3", batch_norm_gradient),
    "powernorm-v": ("Lemma 3", "Eq. 6", pn_v_gradient),
}
"""The lemma and the equation for each norm, and the gradient that they state."""


def errors(norm_type: str, x: Tensor, dy: Tensor, gain: Tensor) -> tuple[float, float]:
    """Return how far the lemma and the equation are from the gradient that autograd gives.

    Args:
        x: the input, (n, C), and ``dy`` the gradient by the output, in float64.
        gain: gamma, (C,).

    Returns:
        the largest length of the difference in a channel, as a share of the length of the gradient.
    """
    options: dict[str, Any] = {"layer_scale_groups": 0, "eps": 0.0}
    norm: Any = build_norm(norm_type, x.size(-1), **options).double().train()
    with torch.no_grad():
        norm.weight.copy_(gain)
    dx, _ = through_norm(norm, x, dy)
    _, _, stated = LEMMAS[norm_type]

    def error(g: Tensor) -> float:
        return float(((stated(x, g) - dx).norm(dim=0) / dx.norm(dim=0)).max())

    return error(gain * dy), error(dy / gain)


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure both norms at each norm of the encoder of a full model, for main placements only."""
    for where, at in options.activations(placement):
        low, high = GAINS
        generator = torch.Generator().manual_seed(where["seed"])
        drawn = torch.rand(at.x.size(-1), generator=generator, dtype=torch.float64)
        for norm in LEMMAS:
            lemma, equation = errors(norm, at.x, at.g, low + (high - low) * drawn)
            yield {**where, "norm": norm, "lemma_error": lemma, "equation_error": equation}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the lemma, and the equation of the main text, give autograd's gradient."""
    for row, some in cases(frame, "norm", "tokens", "placement"):
        lemma, equation, _ = LEMMAS[row["norm"]]
        for name, column in ((lemma, "lemma_error"), (equation, "equation_error")):
            error = some[column].max()
            yield {**row, **verdict(name, f"off by {error:.1e} at most", error <= ROUNDING)}
