"""The AdaNorm paper's numbers and claims on classification, beside what several seeds give here.

The paper has one run a norm. On RT the norms of one seed have the same random split, so two norms
are compared seed by seed; on SST5, which has a split of its own, as independent samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from norm_plugin.analysis.report import p_text
from norm_plugin.analysis.stats import CONFIDENCE, LEVEL, compare_arms
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_same_data,
    check_settings_alike,
    half_interval,
)
from norm_plugin.experiments.results import read_results
from norm_plugin.experiments.tables import markdown
from published import numbers_of

NOT_RUN = "not run"
ONE_SEED = "one seed: no test"
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper: the scores of ``better`` are above those of ``worse``."""

    text: str
    better: str
    worse: str


CLAIMS = (
    Claim("AdaNorm is better than LayerNorm", "adanorm", "layernorm"),
    Claim("LayerNorm is better than no norm", "layernorm", "none"),
    Claim("LayerNorm is better without gain and bias", "layernorm-simple", "layernorm"),
    Claim("Without its derivatives, LayerNorm is worse than no norm", "none", "detachnorm"),
    Claim(
        "The derivative of the variance matters more than that of the mean",
        "detachnorm-mean",
        "detachnorm-std",
    ),
)
"""Sections 2 to 4 of Xu et al. 2019. In the last one, what is detached is what is missed."""
CONTROLS = (
    Claim("AdaNorm is better, both with Kaiming's weights", "adanorm", "layernorm-kaiming"),
    Claim("LayerNorm is better with Kaiming's weights", "layernorm-kaiming", "layernorm"),
)
"""Ours: with `adanorm` the initial weights are Kaiming's, and with the other norms they are not."""


def reproduction_table(experiment: str, results: Path) -> str:
    """Markdown: for each norm the published score, and the mean of the seeds with two intervals.

    Args:
        results: the folder that holds ``<experiment>/``.
    """
    runs = read_runs(results / experiment)
    published = {row.norm: float(row.score) for row in numbers_of(experiment)}
    rows = []
    for norm in dict.fromkeys([*published, *runs["norm"]]):
        number, scores = published.get(norm), runs.loc[runs["norm"] == norm, "score"].tolist()
        row = {"norm": f"`{norm}`", "published": "-" if number is None else f"{number:.2f}"}
        row["mean here"] = f"{statistics.mean(scores):.2f}" if scores else NOT_RUN
        row["seeds"] = str(len(scores))
        row |= dict(zip(INTERVALS, _intervals(scores, number)))
        rows.append(row)
    return markdown(pd.DataFrame(rows).rename(columns={name: name.rstrip() for name in INTERVALS}))


INTERVALS = (
    *("95 % interval of the mean", "published inside"),
    *("95 % interval of one more seed", "published inside "),
)


def _intervals(scores: Sequence[float], published: float | None) -> list[str]:
    """Of the mean and of one more seed, each with whether the published number lies inside."""
    if len(scores) < 2:
        return ["-"] * len(INTERVALS)
    mean, half, cells = statistics.mean(scores), half_interval(scores, CONFIDENCE), []
    for width in (half, half * math.sqrt(len(scores) + 1)):
        low, high = mean - width, mean + width
        inside = "-" if published is None else "yes" if low <= published <= high else "no"
        cells += [f"{low:.2f} to {high:.2f}", inside]
    return cells


def claims_table(experiment: str, results: Path, claims: Sequence[Claim] = CLAIMS) -> str:
    """Markdown: each claim with the published difference, the measured one and the verdict."""
    runs = read_runs(results / experiment)
    published = {row.norm: float(row.score) for row in numbers_of(experiment)}
    norms = set(runs["norm"])
    run = [claim for claim in claims if {claim.better, claim.worse} <= norms]
    tests: dict[Claim, dict[str, float]] = {}
    if run:
        pairs = [(claim.better, claim.worse) for claim in run]
        table = compare_arms(runs.assign(arm=runs["norm"]), pairs)
        tests = dict(zip(run, table.to_dict("records")))
    rows = []
    for claim in claims:
        both = {claim.better, claim.worse} <= published.keys()
        difference = published[claim.better] - published[claim.worse] if both else math.nan
        row = {"claim": claim.text, "difference": f"`{claim.better}` less `{claim.worse}`"}
        row["published"] = f"{difference:+.2f}" if both else "-"
        rows.append(row | _measured(tests.get(claim)))
    return markdown(pd.DataFrame(rows))


def _measured(test: dict[str, float] | None) -> dict[str, str]:
    if test is None:
        return {"here": "-", "95 % interval": "-", "p (Holm)": "-", "verdict": NOT_RUN}
    here = {"here": f"{test['difference']:+.2f}"}
    if math.isnan(test["p"]):
        return here | {"95 % interval": "-", "p (Holm)": "-", "verdict": ONE_SEED}
    ends = [test["difference_low"], test["difference_high"]]
    interval = "-" if math.isnan(ends[0]) else " to ".join(f"{end:+.2f}" for end in ends)
    p = test["p_holm"]
    return here | {
        "95 % interval": interval,
        "p (Holm)": p_text(p),
        "verdict": verdict(test["difference"], p),
    }


def verdict(mean: float, p: float) -> str:
    """What may be said of a claim that the mean difference is above 0."""
    if p >= LEVEL:
        return NOT_SHOWN
    return SHOWN if mean > 0 else CONTRADICTED


def read_runs(folder: Path) -> pd.DataFrame:
    """The results of an experiment; none where its folder does not exist.

    Raises CommandError for results that cannot be compared.
    """
    if not folder.is_dir():
        return pd.DataFrame(columns=["norm", "seed", "score"])
    runs = read_results(folder)
    check_same_data(runs)
    check_settings_alike(runs, TRAINING)
    return runs
