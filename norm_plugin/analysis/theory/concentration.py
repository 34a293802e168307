"""How close squared lengths stay to their mean: supplement of Xiong et al. 2020, section 7."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.batches import REAL, Batches
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table
from norm_plugin.analysis.theory.hidden_states import LEMMA, OUTPUT
from norm_plugin.analysis.theory.rows import group
from norm_plugin.analysis.theory.stack_pass import stack_pass

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


def measure(options: Options, placement: str) -> list[Row]:
    """Shares of |x|^2 in the last layer."""
    return [
        row
        for batches in options.batches_of(placement)
        for row in rows_of(
            batches.kind,
            placement,
            torch.cat(
                [
                    _last_layer(options, batches, placement, seed)
                    for seed in options.seeds_of(placement)
                ]
            ),
            options.dim,
        )
    ]


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


def _last_layer(options: Options, batches: Batches, placement: str, seed: int) -> Tensor:
    """|x|^2 / d where the lemma of the placement has its x; else the output of the layer. (n,)."""
    found = stack_pass(placement, options.norm_type, options.depth, options.dim, batches, seed)
    place = LEMMA[placement].place if placement in LEMMA else OUTPUT
    return found.sums[place][-1] if place in found.sums else found.outputs[-1]


def find(rows: list[Row]) -> Findings:
    """Whether the share is at most the bound at every eps."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    for (tokens, what), some in group(rows, "tokens", "x").items():
        above = [row for row in some if row["share"] > row["bound"]]
        name = CHI_SQUARE if what == CHI_SQUARE else f"`{what}`, {tokens} tokens"
        if above:
            worst = max(above, key=lambda row: row["share"] - row["bound"])
            sentences.append(
                f"{name}: the share exceeds the bound at eps = "
                f"{', '.join(str(row['eps']) for row in above)}; most at {worst['eps']}, where it "
                f"is {worst['share']:.3f} and the bound {worst['bound']:.3f}."
            )
        else:
            sentences.append(f"{name}: {within(some)}")
        cells = {row["eps"]: row for row in some}
        table.append(
            (tokens, what, str(some[0]["draws"]), *(f"{cells[e]['share']:.4f}" for e in SHOWN))
        )
    limits = {row["eps"]: row["bound"] for row in rows}
    table.append(("", "bound", "", *(f"{limits[e]:.4f}" for e in SHOWN)))
    header = ("tokens", "x", "draws", *(f"eps = {e}" for e in SHOWN))
    return Findings(sentences, [Table(header, table)])


def within(rows: list[Row]) -> str:
    """What is said of draws that stay within the bound at every eps."""
    said = f"the share stays within the bound at each of {len(rows)} eps"
    small = sum(row["bound"] * row["draws"] < 1 for row in rows)
    if small:
        said += (
            f"; at {small} of them the bound is below 1 / {rows[0]['draws']}, and the share is 0"
        )
    return f"{said}."


def plot(rows: list[Row], axes: Any) -> None:
    """Share over eps, a line for each x, and the bound."""
    shown = [row for row in rows if row["tokens"] != REAL]
    for place, ((what,), some) in enumerate(group(shown, "x").items()):
        points = [(row["eps"], row["share"]) for row in some if row["share"] > 0]
        if points:
            axes.plot(*zip(*points), **style(place), label=what)
    bounds = {row["eps"]: row["bound"] for row in rows}
    axes.plot(list(bounds), list(bounds.values()), color="#888888", linewidth=3, label="bound")
    axes.set_yscale("log")
    axes.set_xlabel("eps")
    axes.set_ylabel("share outside")
    axes.legend(loc="lower left", fontsize=7, ncols=2)


CLAIM = Claim(
    name="concentration",
    title="Concentration of squared lengths",
    source="Xiong et al. 2020, supplement, section 7",
    statement=(
        "The share of draws of `|x|^2` outside `(1 - eps, 1 + eps)` times their mean is at most "
        "`exp(-n eps^2 / 8)`, n being the number of channels. The theorem on gradients needs this "
        "of the hidden states.",
    ),
    method=(
        "The draws are all positions of all seeds, in the last layer: its output, or the sum that "
        "Lemma 2 is about. The positions of a seed share their weights, so these draws are not "
        "independent. Beside them stands a chi-square with d degrees of freedom, whose draws are. "
        "Where a bound is below 1 / draws, a share of 0 does not show that it holds.",
    ),
    caption="Share of squared lengths outside (1 - eps, 1 + eps) times their mean.",
    measure=measure,
    measure_once=measure_once,
    find=find,
    plot=plot,
)
