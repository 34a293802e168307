"""The AdaNorm paper's numbers and claims on classification, beside what ten seeds give here.

The paper has one run a norm. Here the norms of one seed have the same data, and on RT the same
random split, so two norms are compared seed by seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from markdown_table import markdown
from norm_plugin.analysis.seeds import CONFIDENCE, describe, holm
from norm_plugin.experiments.comparable import check_same_data, half_interval
from norm_plugin.experiments.results import Result, headline, read_results
from published import PUBLISHED

ROUNDING = 1e-9
"""Differences of scores, which have four digits, are off by less in float64."""
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


def reproduction_table(experiment: str, results: Path) -> str:
    """Markdown: for each norm the published score, and the mean of the seeds with two intervals.

    Args:
        results: the folder that holds ``<experiment>/``.
    """
    scores = read_scores(results / experiment)
    published = {row.norm: float(row.score) for row in PUBLISHED[experiment]}
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


def claims_table(experiment: str, results: Path) -> str:
    """Markdown: each claim with the published difference, the measured one and the verdict."""
    scores = read_scores(results / experiment)
    published = {row.norm: float(row.score) for row in PUBLISHED[experiment]}
    differences = [_differences(claim, scores) for claim in CLAIMS]
    tested = [values for values in differences if len(values) > 1]
    corrected = iter(holm([_p(values) for values in tested]))
    rows: list[tuple[str, ...]] = [
        ("claim", "difference", "published", "here", "95 % interval", "p (Holm)", "verdict")
    ]
    for claim, values in zip(CLAIMS, differences):
        row = [claim.text, f"`{claim.better}` less `{claim.worse}`"]
        row.append(f"{published[claim.better] - published[claim.worse]:+.2f}")
        if len(values) > 1:
            rows.append((*row, *_tested(values, next(corrected))))
        else:
            mean = f"{values[0]:+.2f}" if values else "-"
            rows.append((*row, mean, "-", "-", ONE_SEED if values else NOT_RUN))
    return markdown(rows)


def _differences(claim: Claim, scores: Scores) -> list[float]:
    """Of the seeds that both norms have."""
    better, worse = scores.get(claim.better, {}), scores.get(claim.worse, {})
    return [better[seed] - worse[seed] for seed in better if seed in worse]


def _p(values: Sequence[float]) -> float:
    """Of the t test that the mean is 0; 1 where all values are equal, for which t is undefined.

    Equal differences come of the rounding of accuracies, and are no evidence of certainty.
    """
    if max(values) - min(values) < ROUNDING:
        return 1.0
    return float(stats.ttest_1samp(values, 0).pvalue)


def _tested(values: Sequence[float], p: float) -> list[str]:
    sample = describe(values)
    assert sample.interval is not None  # there are two values or more
    interval = " to ".join(f"{end:+.2f}" for end in sample.interval)
    return [f"{sample.mean:+.2f}", interval, f"{p:.3f}", verdict(sample.mean, p)]


def verdict(mean: float, p: float) -> str:
    """What may be said of a claim that the mean difference is above 0."""
    if p >= 1 - CONFIDENCE:
        return NOT_SHOWN
    return SHOWN if mean > 0 else CONTRADICTED


def read_scores(folder: Path) -> Scores:
    """The scores of an experiment; none where its folder does not exist.

    Raises CommandError for results that cannot be compared.
    """
    runs: list[Result] = read_results(folder) if folder.is_dir() else []
    if runs:
        check_same_data(runs)
    scores: dict[str, dict[int, float]] = {}
    for run in runs:
        scores.setdefault(run["norm"], {})[run["seed"]] = headline(run)
    return scores
