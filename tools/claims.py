"""The AdaNorm paper's numbers and claims on classification, beside what several seeds give here.

The paper has one run a norm. On RT the norms of one seed have the same random split, so two norms
are compared seed by seed; on SST5, which has a split of its own, as independent samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_table import markdown
from norm_plugin.analysis.rows import p_text
from norm_plugin.analysis.seeds import (
    CONFIDENCE,
    LEVEL,
    Difference,
    difference,
    holm,
)
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_same_data,
    check_settings_alike,
    half_interval,
    split_seed,
)
from norm_plugin.experiments.results import Result, headline, read_result_files
from published import numbers_of

NOT_RUN = "not run"
ONE_SEED = "one seed: no test"
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
HEADER = (
    *("norm", "published", "mean here", "seeds", "95 % interval of the mean", "published inside"),
    *("95 % interval of one more seed", "published inside"),
)
Scores = Mapping[str, Mapping[int, float]]
"""By norm and by seed."""


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
    scores = scores_of(read_runs(results / experiment))
    published = {row.norm: float(row.score) for row in numbers_of(experiment)}
    rows: list[tuple[str, ...]] = [HEADER]
    for norm in dict.fromkeys([*published, *scores]):
        number = published.get(norm)
        shown = "-" if number is None else f"{number:.2f}"
        rows.append((f"`{norm}`", shown, *_measured(scores.get(norm), number)))
    return markdown(rows)


def _measured(runs: Mapping[int, float] | None, published: float | None) -> list[str]:
    if not runs:
        return [NOT_RUN, "0", "-", "-", "-", "-"]
    values = list(runs.values())
    mean = statistics.mean(values)
    cells = [f"{mean:.2f}", str(len(values))]
    if len(values) == 1:
        return [*cells, "-", "-", "-", "-"]
    half = half_interval(values, CONFIDENCE)
    for width in (half, half * math.sqrt(len(values) + 1)):  # of a mean, and of one more value
        low, high = mean - width, mean + width
        inside = "-" if published is None else "yes" if low <= published <= high else "no"
        cells += [f"{low:.2f} to {high:.2f}", inside]
    return cells


def claims_table(experiment: str, results: Path, claims: Sequence[Claim] = CLAIMS) -> str:
    """Markdown: each claim with the published difference, the measured one and the verdict."""
    runs = read_runs(results / experiment)
    published = {row.norm: float(row.score) for row in numbers_of(experiment)}
    found = [difference_of(claim, runs) for claim in claims]
    tested = [one for one in found if one is not None and one.least_p is not None]
    # Where nothing varies, t is undefined: equal scores come of the rounding of accuracies.
    corrected = iter(holm([1.0 if one.t_p is None else one.t_p for one in tested]))
    rows: list[tuple[str, ...]] = [
        ("claim", "difference", "published", "here", "95 % interval", "p (Holm)", "verdict")
    ]
    for claim, one in zip(claims, found):
        row = [claim.text, f"`{claim.better}` less `{claim.worse}`"]
        both = {claim.better, claim.worse} <= published.keys()
        row.append(f"{published[claim.better] - published[claim.worse]:+.2f}" if both else "-")
        if one is None:
            rows.append((*row, "-", "-", "-", NOT_RUN))
        elif one.least_p is None:
            rows.append((*row, f"{one.mean:+.2f}", "-", "-", ONE_SEED))
        else:
            rows.append((*row, *_tested(one, next(corrected))))
    return markdown(rows)


def difference_of(claim: Claim, runs: Sequence[Result]) -> Difference | None:
    """Of the two norms of a claim; None where one of them has no run."""
    scores = scores_of(runs)
    if claim.better not in scores or claim.worse not in scores:
        return None
    paired = any(split_seed(run) is not None for run in runs)
    return difference(scores[claim.better], scores[claim.worse], paired)


def _tested(one: Difference, p: float) -> list[str]:
    interval = " to ".join(f"{end:+.2f}" for end in one.interval or ()) or "-"
    return [f"{one.mean:+.2f}", interval, p_text(p), verdict(one.mean, p)]


def verdict(mean: float, p: float) -> str:
    """What may be said of a claim that the mean difference is above 0."""
    if p >= LEVEL:
        return NOT_SHOWN
    return SHOWN if mean > 0 else CONTRADICTED


def read_runs(folder: Path) -> list[Result]:
    """The results of an experiment; none where its folder does not exist.

    Raises CommandError for results that cannot be compared.
    """
    runs: list[Result] = read_result_files(folder) if folder.is_dir() else []
    if runs:
        check_same_data(runs)
        check_settings_alike(runs, TRAINING)
    return runs


def scores_of(runs: Sequence[Result]) -> Scores:
    """The headline score of each run."""
    scores: dict[str, dict[int, float]] = {}
    for run in runs:
        scores.setdefault(run["norm"], {})[run["seed"]] = headline(run)
    return scores
