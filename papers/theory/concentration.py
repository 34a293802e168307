"""Concentration of squared lengths.

Xiong et al. 2020, appendix G. The share of draws of `|x|^2` above `1 + eps` times their mean is at
most `exp(-n eps^2 / 8)`, n being the number of channels. Measured is the share outside
`(1 - eps, 1 + eps)`, which is larger. Section 3.4 has 0.125 for eps = 0.1, by measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
import torch
from torch import Tensor

from papers.theory.claim import Options, Row, verdict
from papers.theory.hidden_states import OUTPUT
from papers.theory.models import Batches

CASE = ("x", "tokens")

EPSILONS = tuple(round(0.05 * step, 2) for step in range(1, 11))
CHI_SQUARE = "chi-square"
PLACE = {"pre": OUTPUT, "post": "ffn"}
"""The place of the hidden state that Theorem 1 is about, by placement."""
DRAWS, CHUNK = 20_000, 1_000
"""The number of draws of |x|^2 for normal x, and the number drawn at once."""
SHOWN = (0.1, 0.2, 0.3)
"""The eps of the table."""
FOUND = (0.1, 0.125)
"""The eps and the share of section 3.4, for hidden states under pre-norm and post-norm."""


def share_outside(draws: Tensor, eps: float) -> float:
    """Return the share of ``draws`` that are outside (1 - eps, 1 + eps) times their mean.

    NaN if a draw is not finite: a NaN would count as inside.
    """
    if not draws.isfinite().all():
        return math.nan
    return float(((draws / draws.mean() - 1).abs() > eps).float().mean())


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure shares of |x|^2 in the last layer."""
    for batches in options.batches_of(placement):
        seeds = options.seeds_of(placement)
        draws = torch.cat([last_layer(options, batches, placement, seed) for seed in seeds])
        yield from share_rows(draws, options.dim, tokens=batches.kind, x=placement)


def measure_once(options: Options) -> Iterator[Row]:
    """Measure shares of a chi-square distribution with d degrees of freedom."""
    return share_rows(chi_square(options.dim), options.dim, tokens="none", x=CHI_SQUARE)


def share_rows(draws: Tensor, n: int, **where: str) -> Iterator[Row]:
    """Yield the share outside and its bound, for each eps."""
    for eps in EPSILONS:
        yield {
            **where,
            "n": n,
            "eps": eps,
            "draws": draws.numel(),
            "share": share_outside(draws, eps),
            "bound": math.exp(-n * eps**2 / 8),
        }


def chi_square(n: int) -> Tensor:
    """Return draws of |x|^2 for x of n independent normal numbers, (DRAWS,)."""
    generator = torch.Generator().manual_seed(0)
    chunks = [torch.randn(CHUNK, n, generator=generator) for _ in range(DRAWS // CHUNK)]
    return torch.cat([chunk.square().sum(dim=1) for chunk in chunks])


def last_layer(options: Options, batches: Batches, placement: str, seed: int) -> Tensor:
    """Return |x|^2 / d, (n,), of the lemma's x under the placement; else of the layer's output."""
    stack = options.stack_pass(placement, batches, seed)
    place = PLACE.get(placement, OUTPUT)
    return stack.sums[place][-1] if place in stack.sums else stack.outputs[-1]


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the share of |x|^2 outside 1 +- eps is at most its bound at every eps."""
    limits = frame.drop_duplicates("eps").set_index("eps")["bound"]
    shown = {f"eps = {eps}": f"{limits[eps]:.4f}" for eps in SHOWN}
    yield {"x": "bound", "tokens": "", "draws": "", **shown}
    for (tokens, what), some in frame.groupby(["tokens", "x"], sort=False):
        limit, draws = some["bound"], some["draws"].iloc[0]
        excess = some["share"] - limit
        worst = some.loc[excess.idxmax()]
        within = int((excess <= 0).sum())
        shares = some.set_index("eps")["share"]
        yield {
            "x": what,
            "tokens": tokens,
            "draws": str(draws),
            **{f"eps = {eps}": f"{shares[eps]:.4f}" for eps in SHOWN},
            "bound < 1 / draws": str((limit * draws < 1).sum()),
            "excess": f"{excess.max():.3f} at {worst['eps']}" if within < len(some) else "none",
            **verdict(f"within at {len(some)} eps", f"within at {within} eps", within == len(some)),
        }
        if what in PLACE:
            eps, most = FOUND
            stated = f"share at eps = {eps} at most {most}"
            row = verdict(stated, f"{shares[eps]:.4f}", bool(shares[eps] <= most))
            yield {"x": what, "tokens": tokens, "draws": str(draws), **row}
