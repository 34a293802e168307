"""The comparisons of arms as tables: outcomes by seed, families, corrections and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from norm_lab.config.studies import (
    BEFORE,
    EQUIVALENCE,
    LOSSES,
    SCORE,
    PrimaryComparison,
    outcome_unit,
    terms,
)
from norm_lab.metrics import find_metric
from norm_lab.study.power import seeds_needed
from norm_lab.study.significance import (
    Verdict,
    compare,
    compare_independent,
    describe,
    holm,
    standard_deviation,
    verdict,
)
from norm_plugin.io.command_line import CommandError

PRIMARY, EXPLORATORY = "primary", "exploratory"
EQUIVALENCE_BY = "two one-sided tests, "
"""The prefix of the name of a t test that tests equivalence."""
COLUMNS = (
    *("arm", "baseline", "outcome", "n", "mean", "standard_deviation", "low", "high"),
    *("difference", "difference_low", "difference_high", "standard_error", "degrees"),
    *("test", "p", "p_permutation", "exact"),
    *("p_holm", "margin", "verdict", "family", "declared", "by_seed"),
    *("seeds_paired", "seeds_unpaired"),
)


class Comparisons:
    """The comparisons of a study, each computed once.

    A pair that the study declares for an outcome is tested as declared, and Holm's correction
    includes all declared comparisons. The other pairs of an outcome are exploratory, and a family
    of their own.

    Args:
        runs: the table of the runs of a study, with the column ``arm``.
        pairs: pairs of names of arms; an arm that is its own baseline is described, not tested.
        primary: the comparisons that the study declares.
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        pairs: Sequence[tuple[str, str]],
        primary: Sequence[PrimaryComparison] = (),
    ) -> None:
        self.runs, self.pairs, self.primary = runs, list(dict.fromkeys(pairs)), primary
        self._by_outcome: dict[str, pd.DataFrame] = {}

    @cached_property
    def declared(self) -> pd.DataFrame:
        """The declared comparisons of all outcomes, with the columns of :func:`compare_arms`."""
        rows = [
            _row(self.runs, each.arm, each.baseline, each.outcome, each) for each in self.primary
        ]
        _correct(rows)
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def of(self, outcome: str = SCORE) -> pd.DataFrame:
        """Return the comparisons of all pairs in an outcome; see :func:`compare_arms`."""
        if outcome not in self._by_outcome:
            declared: dict[tuple[str, str], Any] = {}
            for row in self.declared.to_dict("records"):
                if row["outcome"] == outcome:
                    pair = row["arm"], row["baseline"]
                    declared |= {pair: row, pair[::-1]: _mirrored(row, self.runs)}
            rows = [declared.get(pair) or _row(self.runs, *pair, outcome) for pair in self.pairs]
            _correct([row for row in rows if not row["declared"]])
            self._by_outcome[outcome] = pd.DataFrame(rows, columns=list(COLUMNS))
        return self._by_outcome[outcome]

    @cached_property
    def every(self) -> pd.DataFrame:
        """The comparisons of all pairs in the score and in the losses that the runs have."""
        losses = [loss for loss in LOSSES if self.runs[loss].notna().any()]
        return pd.concat([self.of(outcome) for outcome in (SCORE, *losses)], ignore_index=True)

    @cached_property
    def all(self) -> pd.DataFrame:
        """The declared comparisons, followed by :attr:`every`."""
        return pd.concat([table for table in (self.declared, self.every) if len(table)])


def compare_arms(
    runs: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    outcome: str = SCORE,
    primary: Sequence[PrimaryComparison] = (),
) -> pd.DataFrame:
    """Compare arms with their baselines, one row per pair; see :class:`Comparisons`.

    Args:
        outcome: the outcome, as in a study file.

    Returns:
        :data:`COLUMNS`, NaN if undefined. ``n``, ``mean``, ``standard_deviation``, ``low`` and
        ``high`` describe the arm; ``difference`` and its 95 % interval are the arm minus the
        baseline. ``test`` is the test of ``p``; for a declared equivalence, that is two one-sided
        tests within ``margin``, without a permutation test, unless the verdict is that the
        difference is better or worse, which has its own p. ``family`` is primary or exploratory; a
        comparison that was declared after the runs (``declared``) is exploratory. ``seeds_paired``
        and ``seeds_unpaired`` are the seeds per arm needed to detect the smallest difference that
        the metric considers relevant, given the standard deviations of this pair; NaN for losses.

    Raises:
        CommandError: the metric or the runs do not have the outcome.
    """
    return Comparisons(runs, pairs, primary).of(outcome)


def describe_arms(runs: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """Return the mean score over the seeds of each arm, and its 95 % interval.

    Returns:
        columns ``arm``, ``mean``, ``low`` and ``high``; NaN if undefined.
    """
    rows = [{"arm": arm, **_description(_by_seed(runs, arm, SCORE), runs)} for arm in arms]
    return pd.DataFrame(rows, columns=["arm", "mean", "low", "high"])


def _description(by_seed: Mapping[int, float], runs: pd.DataFrame) -> dict[str, float]:
    """Return the columns that describe an arm, from an outcome by seed; empty without a value."""
    if not by_seed:
        return {}
    sample = describe(list(by_seed.values()), split_ratio(runs))
    low, high = sample.interval
    deviation = sample.deviation or math.nan
    return {"mean": sample.mean, "standard_deviation": deviation, "low": low, "high": high}


def _row(
    runs: pd.DataFrame,
    arm: str,
    baseline: str,
    outcome: str,
    declared: PrimaryComparison | None = None,
) -> dict[str, Any]:
    """Return a comparison, with p not yet corrected."""
    scores, others = (_by_seed(runs, side, outcome) for side in (arm, baseline))
    ratio, metric = split_ratio(runs), find_metric(runs["metric"].iloc[0])
    row: dict[str, Any] = dict.fromkeys(COLUMNS, math.nan)
    row |= {"arm": arm, "baseline": baseline, "outcome": outcome, "n": len(scores), "by_seed": ()}
    row |= {"test": "", "exact": True, "family": EXPLORATORY, "declared": ""}
    row |= {"higher_is_better": higher_is_better(runs, outcome), "equivalence_p": math.nan}
    row |= _description(scores, runs)
    if declared is not None:
        row["declared"] = declared.declared
        row["family"] = PRIMARY if declared.declared == BEFORE else EXPLORATORY
    if arm == baseline or not (scores and others):
        return row
    if declared is not None and declared.paired and not scores.keys() & others.keys():
        raise CommandError(
            f"{arm} and {baseline} have no seed in common, but the study declares them paired"
        )
    if declared is None or declared.paired:
        comparison = compare(scores, others, ratio)
    else:
        comparison = compare_independent(list(scores.values()), list(others.values()), ratio)
    low, high = comparison.interval
    row |= {"difference": comparison.mean, "difference_low": low, "difference_high": high}
    own = ("standard_error", "degrees", "test", "p", "p_permutation", "exact")
    row |= {name: getattr(comparison, name) for name in own}
    row |= {"by_seed": comparison.by_seed}
    if declared is not None and declared.test == EQUIVALENCE and comparison.n > 1:
        row["margin"] = declared.size
        row["equivalence_p"] = comparison.equivalence_p(row["margin"])
        row["test"] = f"{EQUIVALENCE_BY}{comparison.test}"
    # losses have no smallest relevant difference
    of_interest = metric.of_interest if outcome == SCORE else math.nan
    needed = partial(seeds_needed, difference=of_interest, test_to_train=ratio)
    deviations = [standard_deviation(np.array(list(side.values()))) for side in (scores, others)]
    of_arms = math.sqrt(sum(deviation**2 for deviation in deviations) / 2)
    row["seeds_paired"] = needed(standard_deviation(np.array(row["by_seed"])), paired=True)
    return row | {"seeds_unpaired": needed(of_arms, paired=False)}


def _mirrored(row: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, Any]:
    """Return a corrected comparison as the baseline minus the arm."""
    arm, baseline = row["baseline"], row["arm"]
    by_seed = _by_seed(runs, arm, row["outcome"])
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    return {
        **row,
        **{"arm": arm, "baseline": baseline, "n": len(by_seed), **_description(by_seed, runs)},
        "difference": -row["difference"],
        "difference_low": -row["difference_high"],
        "difference_high": -row["difference_low"],
        "by_seed": tuple(-each for each in row["by_seed"]),
        "verdict": opposite.get(row["verdict"], row["verdict"]),
    }


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    """Correct the p values of a family, and add the verdicts.

    A row with a test of equivalence has two null hypotheses, at most one of which is true. Holm's
    correction applies to the declared test of each row; the p of the other one is multiplied by the
    number of rows. The row keeps the p of the test that decides its verdict.
    """
    tested = [row for row in rows if not math.isnan(row["p"])]
    equivalences = [not math.isnan(row["equivalence_p"]) for row in tested]
    corrected = holm([r["equivalence_p"] if e else r["p"] for r, e in zip(tested, equivalences)])
    for row, is_equivalence, p in zip(tested, equivalences, corrected):
        row["p_holm"] = p
        difference_p = min(1.0, len(tested) * row["p"]) if is_equivalence else p
        row["verdict"] = verdict(
            row["difference"],
            difference_p,
            higher_is_better=row["higher_is_better"],
            equivalence_p=p if is_equivalence else math.nan,
        )
        if is_equivalence and row["verdict"] in (Verdict.BETTER, Verdict.WORSE):
            row["p_holm"], row["test"] = difference_p, row["test"].removeprefix(EQUIVALENCE_BY)
        elif is_equivalence:
            row["p"], row["p_permutation"] = row["equivalence_p"], math.nan
    for row in rows:
        if math.isnan(row["p"]):
            same = row["arm"] == row["baseline"]
            row["verdict"] = Verdict.BASELINE if same else Verdict.NOT_TESTED


def outcome_values(runs: pd.DataFrame, outcome: str = SCORE) -> pd.Series:
    """Return an outcome of each run.

    An accuracy is computed from its counts: the rounding of the stored score would break ties,
    which matter for permutation tests.

    Returns:
        one value per run; NaN for a run without losses, or with a score that is NaN.

    Raises:
        CommandError: the metric or the runs do not have the outcome.
    """
    metric = find_metric(runs["metric"].iloc[0])
    outcome_unit(outcome, metric, "the report")
    kind = metric.headline if outcome == SCORE else outcome
    correct, total = f"scores.{kind}.correct", f"scores.{kind}.sentences"
    if {correct, total} <= set(runs):
        return 100 * runs[correct].astype(float) / runs[total].astype(float)
    column = outcome if outcome in (SCORE, *LOSSES) else f"scores.{kind}.score"
    if column not in runs or (outcome not in LOSSES and runs[column].isna().all()):
        raise CommandError(
            f"no run has the outcome {outcome}; evaluate the runs again, or compare another outcome"
        )
    return runs[column].astype(float)


def higher_is_better(runs: pd.DataFrame, outcome: str) -> bool:
    """Return whether a higher value of an outcome is better; False for losses."""
    metric = find_metric(runs["metric"].iloc[0])
    return outcome not in (*LOSSES, *metric.losses) and metric.higher_is_better


def split_ratio(runs: pd.DataFrame) -> float:
    """Return test over training examples if each seed splits the corpus at random, else 0."""
    if "split_seed" not in runs or runs["split_seed"].isna().any():
        return 0.0
    tested = f"scores.{find_metric(runs['metric'].iloc[0]).headline}.sentences"
    for name in (tested, "data.training_pairs"):
        if name not in runs or runs[name].isna().any():
            raise CommandError(f"a result on a random split lacks {name}, which its interval needs")
    return float((runs[tested] / runs["data.training_pairs"]).mean())


def _by_seed(runs: pd.DataFrame, side: str, outcome: str) -> dict[int, float]:
    """Return an outcome of an arm by seed; for a difference of two arms, for their common seeds."""
    every, columns = outcome_values(runs, outcome), []
    for arm in terms(side):
        is_arm = runs["arm"] == arm
        columns.append(every[is_arm].set_axis(runs.loc[is_arm, "seed"]).dropna())
    values = columns[0] if len(columns) == 1 else (columns[0] - columns[1]).dropna()
    return values.to_dict()
