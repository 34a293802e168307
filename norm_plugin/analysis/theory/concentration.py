"""Concentration of squared lengths.

**Claim** (Xiong et al. 2020, supplement, section 7). The share of draws of `|x|^2` outside
`(1 - eps, 1 + eps)` times their mean is at most `exp(-n eps^2 / 8)`, n being the number of
channels. The theorem on gradients needs this of the hidden states.

**Method.** The draws are all positions of all seeds, in the last layer: its output, or the sum that
Lemma 2 is about. The positions of a seed share their weights, so these draws are not independent.
Beside them stands a chi-square with d degrees of freedom, whose draws are. Where a bound is below
1 / draws, a share of 0 does not show that it holds: the table counts these eps. The excess is the
largest of share less bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, verdict
from norm_plugin.analysis.theory.hidden_states import LEMMA, OUTPUT
from norm_plugin.analysis.theory.stacks import REAL, Batches, stack_pass

EPSILONS = tuple(round(0.05 * step, 2) for step in range(1, 11))
CHI_SQUARE = "chi-square"
DRAWS, CHUNK = 20_000, 1_000
"""Of |x|^2 for x normal, and how many are made at once."""
SHOWN = (0.1, 0.2, 0.3)
"""The eps of the table."""


def bound(n: int, eps: float) -> float:
    """exp(-n eps^2 / 8)."""
    return math.exp(-n * eps**2 / 8)


def share_outside(draws: Tensor, eps: float) -> float:
    """The share of ``draws`` that are outside (1 - eps, 1 + eps) times their mean.

    NaN where a draw is not finite: a NaN would count as inside.
    """
    if not draws.isfinite().all():
        return math.nan
    return float(((draws / draws.mean() - 1).abs() > eps).float().mean())


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Shares of |x|^2 in the last layer."""
    for batches in options.batches_of(placement):
        draws = [
            last_layer(options, batches, placement, seed) for seed in options.seeds_of(placement)
        ]
        yield from rows_of(batches.kind, placement, torch.cat(draws), options.dim)


def measure_once(options: Options) -> list[Row]:
    """Shares of a chi-square with d degrees of freedom."""
    return rows_of("none", CHI_SQUARE, chi_square(options.dim), options.dim)


def rows_of(tokens: str, what: str, draws: Tensor, n: int) -> list[Row]:
    """The share outside and its bound, for each eps."""
    return [
        {
            "tokens": tokens,
            "x": what,
            "n": n,
            "eps": eps,
            "draws": draws.numel(),
            "share": share_outside(draws, eps),
            "bound": bound(n, eps),
        }
        for eps in EPSILONS
    ]


def chi_square(n: int) -> Tensor:
    """Draws of |x|^2, x of n independent normal numbers, (DRAWS,)."""
    generator = torch.Generator().manual_seed(0)
    return torch.cat(
        [
            torch.randn(CHUNK, n, generator=generator).square().sum(dim=1)
            for _ in range(DRAWS // CHUNK)
        ]
    )


def last_layer(options: Options, batches: Batches, placement: str, seed: int) -> Tensor:
    """|x|^2 / d where the lemma of the placement has its x; else the output of the layer. (n,)."""
    found = stack_pass(placement, options.norm_type, options.depth, options.dim, batches, seed)
    place = LEMMA[placement].place if placement in LEMMA else OUTPUT
    return found.sums[place][-1] if place in found.sums else found.outputs[-1]


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Whether the share is at most the bound at every eps."""
    limits = frame.drop_duplicates("eps").set_index("eps")["bound"]
    shown = {f"eps = {eps}": f"{limits[eps]:.4f}" for eps in SHOWN}
    yield {"x": "bound", "tokens": "", "draws": "", **shown}
    for (tokens, what), some in groups(frame, "tokens", "x"):
        share, limit, draws = some["share"], some["bound"], some["draws"].iloc[0]
        excess = share - limit
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


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """Share over eps, a line for each x, and the bound."""
    for place, (what, some) in enumerate(groups(frame[frame["tokens"] != REAL], "x")):
        drawn = some[some["share"] > 0]
        if len(drawn):
            axes.plot(drawn["eps"], drawn["share"], **style(place), label=what)
    bounds = frame.drop_duplicates("eps")
    axes.plot(bounds["eps"], bounds["bound"], color="#888888", linewidth=3, label="bound")
    axes.set_yscale("log")
    axes.set_xlabel("eps")
    axes.set_ylabel("share outside")
    axes.legend(loc="lower left", fontsize=7, ncols=2)


CLAIM = Claim(
    name="concentration",
    place=5,
    text=__doc__,
    caption="Share of squared lengths outside (1 - eps, 1 + eps) times their mean.",
    case=("x", "tokens"),
    measure=measure,
    measure_once=measure_once,
    verdicts=verdicts,
    plot=plot,
)
