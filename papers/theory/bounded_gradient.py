"""The approximate gradient of PowerNorm.

Shen et al. 2020 (PowerNorm), Theorem 1: the gradient of PN's approximate backward pass is bounded.
The bound measured here was derived from Algorithm 2, without the theorem's Assumption 2.

With `g = dL/dx_hat`, lengths over the n positions of a channel, `Gamma = mean_V(x_hat^2)` and
`Lambda = mean_V(g x_hat)`, PN updates nu by
`nu_t = (1 - (1 - a_b) Gamma_t) nu_{t-1} + (1 - a_b) Lambda_t`. As long as `(1 - a_b) Gamma_t <= 1`,
this is a weighted mean of nu_{t-1} and `Lambda_t / Gamma_t`. So |nu_t| is at most M_t, the largest
`|Lambda_s| / Gamma_s` of the batches s up to t. The gradient is
`dL/dx = (g - nu_{t-1} x_hat) / psi`, so its length is at most `(|g| + M_{t-1} |x_hat|) / psi`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch

from papers.theory.claim import ROUNDING, Options, Row, cases, verdict
from papers.theory.lipschitz import EPOCHS, running_norm
from papers.theory.models import Activations, through_norm

CASE = ("placement", "tokens")

BOUNDED = {
    "step": "(1 - a_b) Gamma",
    "nu": "|nu_t| / M_t",
    "gradient": "|dL/dx| psi / (|g| + M |x_hat|)",
}
"""What is bounded by 1, by the column of its largest value over the channels."""
SHARE = "|dL/dx| psi / |g|"


def passes(batches: Sequence[Activations], epochs: int = EPOCHS) -> Iterator[Row]:
    """Yield what each pass of PN over these batches shows, in their order, epoch by epoch.

    Yields:
        the largest values over the channels of :data:`BOUNDED`, and of :data:`SHARE` as ``share``.
    """
    norm: Any = running_norm(batches[0].x.size(-1))
    bound = torch.zeros_like(norm.nu)
    for at in (at for _ in range(epochs) for at in batches):
        psi = (norm.psi2 + norm.eps).sqrt()
        dx, x_hat = through_norm(norm, at.x, at.g)
        g_length, x_length, dx_length = (
            torch.linalg.vector_norm(values, dim=0) for values in (at.g, x_hat, dx)
        )
        gradient = dx_length * psi / (g_length + bound * x_length)
        gamma = x_hat.square().mean(dim=0)
        bound = torch.maximum(bound, (at.g * x_hat).mean(dim=0).abs() / gamma)
        yield {
            "step": float(((1 - norm.alpha_bwd) * gamma).max()),
            "nu": float((norm.nu.abs() / bound).max()),
            "gradient": float(gradient.max()),
            "share": float((dx_length * psi / g_length).max()),
        }


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure at each norm of the encoder of a full model, for main placements only."""
    for where, at_site in options.activations_by_site(placement):
        for number, row in enumerate(passes(at_site)):
            yield {**where, "epoch": number // len(at_site), "batch": number % len(at_site), **row}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether nu and the gradient stay within what follows from the recursion."""
    for row, some in cases(frame, "tokens", "placement"):
        for column, name in BOUNDED.items():
            largest = some[column].max()
            holds = largest <= 1 + ROUNDING
            yield {**row, **verdict(f"{name} <= 1", f"{largest:.4f} at most", holds)}
        yield {**row, **verdict("-", f"{SHARE}: {some['share'].max():.4f} at most", None)}
