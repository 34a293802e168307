"""The AdaNorm paper's scores and claims on classification, beside what several seeds give.

The paper has one run a norm. Its claims on RT and SST5 are the primary comparisons of the studies
adanorm_rt and adanorm_sst5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from norm_plugin.analysis.report import formatted
from norm_plugin.analysis.stats import (
    Verdict,
    compare_arms,
    compare_primary,
    describe,
    half_interval,
    outcome_values,
    split_ratio,
)
from norm_plugin.analysis.study import TRAINING, check_same_data, check_settings_alike, markdown
from norm_plugin.experiments.metrics import find_metric
from norm_plugin.experiments.results import read_results
from norm_plugin.experiments.studies import (
    EQUIVALENCE,
    SCORE,
    PrimaryComparison,
    read_study_file,
    study_path,
)
from published import PUBLISHED

NOT_RUN = "not run"
SHOWN, CONTRADICTED = "shown", "contradicted"
PAPER = "adanorm_{}"
"""The study that declares the paper's claims on an experiment."""
CLAIMS = {
    ("adanorm", "layernorm"): "AdaNorm is better than LayerNorm",
    ("layernorm", "none"): "LayerNorm is better than no norm",
    ("layernorm-simple", "layernorm"): "Gain and bias do not matter",
    ("none", "detachnorm"): "Without its derivatives, LayerNorm is worse than no norm",
    ("layernorm-simple", "detachnorm"): "Without its derivatives, LayerNorm-simple is worse",
    (
        "detachnorm-mean",
        "detachnorm-std",
    ): "The derivative of the variance matters more than that of the mean",
}
"""Sections 2 to 4 of Xu et al. 2019, by the comparison: the first arm is the better one.

In the last claim, what is detached is what is missed.
"""


def reproduction_table(experiment: str, results: Path) -> str:
    """Markdown: for each norm the published score, and the mean of the seeds with two intervals.

    Args:
        results: the folder that holds ``<experiment>/``.
    """
    runs = read_runs(results / experiment)
    published = {row.norm: float(row.score) for row in PUBLISHED[experiment]}
    ratio = split_ratio(runs) if len(runs) else 0.0
    rows = []
    for norm in dict.fromkeys([*published, *runs["norm"]]):
        number, of_norm = published.get(norm), runs[runs["norm"] == norm]
        scores = outcome_values(of_norm).tolist() if len(of_norm) else []
        row = {"norm": f"`{norm}`", "published": "-" if number is None else f"{number:.2f}"}
        row["mean here"] = f"{statistics.mean(scores):.2f}" if scores else NOT_RUN
        row["seeds"] = str(len(scores))
        row |= dict(zip(INTERVALS, _intervals(scores, number, ratio)))
        rows.append(row)
    return markdown(pd.DataFrame(rows).rename(columns={name: name.rstrip() for name in INTERVALS}))


INTERVALS = (
    *("95 % interval of the mean", "published inside"),
    *("95 % interval of one more seed", "published inside "),
)


def _intervals(scores: Sequence[float], published: float | None, ratio: float) -> list[str]:
    """Of the mean and of one more seed, each with whether the published number lies inside."""
    if len(scores) < 2:
        return ["-"] * len(INTERVALS)
    sample, cells = describe(scores, ratio), []
    one_more = half_interval(scores) * math.sqrt(len(scores) + 1)
    for low, high in (
        sample.interval,
        (sample.mean - one_more, sample.mean + one_more),
    ):
        inside = "-" if published is None else "yes" if low <= published <= high else "no"
        cells += [f"{low:.2f} to {high:.2f}", inside]
    return cells


def claims_table(experiment: str, results: Path, outcome: str = SCORE) -> str:
    """Markdown: each claim of the paper with the measured difference and the verdict.

    The score is the outcome that the study declares, with the published difference beside it.
    Another outcome is exploratory: each claim is one of superiority, but that of equivalence, which
    declares no margin for it and is left out.
    """
    runs = read_runs(results / experiment)
    primary = read_study_file(study_path(PAPER.format(experiment))).primary
    if outcome != SCORE:
        primary = tuple(each for each in primary if each.test != EQUIVALENCE)
    published = {row.norm: float(row.score) for row in PUBLISHED[experiment]}
    measured, not_run = _measured(runs, primary, outcome), dict.fromkeys(MEASURED, "-")
    rows = []
    for each in primary:
        row = {"claim": CLAIMS[each.arm, each.baseline]}
        row["difference"] = f"`{each.arm}` less `{each.baseline}`"
        if outcome == SCORE:
            row["published"] = f"{published[each.arm] - published[each.baseline]:+.2f}"
        rows.append(row | measured.get(each, {**not_run, "verdict": NOT_RUN}))
    return markdown(pd.DataFrame(rows))


MEASURED = ("here", "95 % interval", "p", "p (Holm)", "p (permutation)")


def _measured(
    runs: pd.DataFrame, comparisons: Sequence[PrimaryComparison], outcome: str
) -> dict[PrimaryComparison, dict[str, str]]:
    """The cells of each comparison whose arms were run.

    The score is tested as declared, a loss for superiority.
    """
    run = [each for each in comparisons if {each.arm, each.baseline} <= set(runs["norm"])]
    if not run:
        return {}
    runs = runs.assign(arm=runs["norm"])
    if outcome == SCORE:
        tests = compare_primary(runs, run)
    else:
        tests = compare_arms(runs, [(each.arm, each.baseline) for each in run], outcome)
    shown = tests[
        ["difference", "difference_low", "difference_high", "p", "p_holm", "p_permutation"]
    ]
    cells = formatted(shown, find_metric(runs["metric"].iloc[0]), outcome)
    cells = cells.set_axis(list(MEASURED), axis="columns")
    cells["verdict"] = [verdict(*both) for both in zip(run, tests["verdict"])]
    return dict(zip(run, cells.to_dict("records")))


def verdict(claim: PrimaryComparison, verdict: Verdict) -> str:
    """What a verdict says of a claim that the first arm is better, or both are equivalent."""
    if verdict in (Verdict.UNDECIDED, Verdict.NOT_TESTED):
        return str(verdict)
    wanted = Verdict.EQUIVALENT if claim.test == EQUIVALENCE else Verdict.BETTER
    return SHOWN if verdict == wanted else CONTRADICTED


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
