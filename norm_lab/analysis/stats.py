"""Inference on outcomes over seeds: intervals, tests, equivalence, verdicts and power.

The unit of observation is a seed: its score is one draw from the distribution of scores of an arm.
Arms that share seeds are paired, since a seed determines the order of the data, the initial weights
and a random split of the corpus; the differences by seed are one sample. Arms without common seeds
are two independent samples.

The verdict is that of Student's t test, or Welch's for independent samples, so that it agrees with
the interval. The permutation test is reported too. It makes fewer assumptions, but its smallest p
with n pairs is 2 / 2^n, so it cannot be significant with five seeds or fewer. docs/statistics.md
has the size and the power of both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from norm_lab.experiments.metrics import find_metric
from norm_lab.experiments.studies import (
    BEFORE,
    EQUIVALENCE,
    LOSSES,
    SCORE,
    PrimaryComparison,
    outcome_unit,
    terms,
)
from norm_plugin.io.command_line import CommandError

LEVEL = 0.05
"""The level of significance, for p values corrected within their family."""
CONFIDENCE = 1 - LEVEL
POWER = 0.8
"""The power for which the number of seeds is planned."""
EXACT_SEEDS = 20
"""The sign-flip test is exact, with all 2^n assignments, up to this number of paired seeds."""
EXACT_DIVISIONS = 2_000_000
"""The permutation test of independent samples is exact up to this number of divisions."""
DRAWS = 19_999
"""The number of random permutations of a test that is not exact."""
TIE = 1e-9
"""Statistics with a smaller relative difference are equal up to rounding, as sums of the same
scores in another order."""
MOST_SEEDS = 10**9
PRIMARY, EXPLORATORY = "primary", "exploratory"
EQUIVALENCE_BY = "two one-sided tests, "
"""Before the name of a t test: the test of equivalence by it."""
Scores = Sequence[float] | np.ndarray


def half_interval(values: Scores, test_to_train: float = 0.0) -> float:
    """Half the width of Student's 95 % interval of the mean of two or more values.

    Args:
        test_to_train: see :func:`compare`.
    """
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(quantile * stats.sem(values) * math.sqrt(1 + len(values) * test_to_train))


class Verdict(StrEnum):
    """The verdict of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent within the margin"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"  # fewer than two seeds
    BASELINE = "baseline"


@dataclass(frozen=True)
class Sample:
    """A summary of the scores of several seeds.

    Attributes:
        deviation: the standard deviation with n - 1; NaN for one seed.
        interval: Student's 95 % interval of the mean; NaN for one seed.
        count: the number of seeds.
    """

    mean: float
    deviation: float
    interval: tuple[float, float]
    count: int


@dataclass(frozen=True)
class Comparison:
    """The difference of two arms; NaN for undefined values.

    Attributes:
        mean: the mean of the first arm minus that of the second, in the unit of the outcome.
        standard_error: the standard error of the mean; 0 without variation.
        degrees: the degrees of freedom of the t distribution.
        p_permutation: the p value of the two-sided permutation test.
        exact: whether the permutation test is exact.
        test: the name of the t test.
        n: the number of paired seeds, or that of the smaller arm.
        by_seed: the differences of paired seeds.
    """

    mean: float
    standard_error: float = math.nan
    degrees: float = math.nan
    p_permutation: float = math.nan
    exact: bool = True
    test: str = ""
    n: int = 1
    by_seed: tuple[float, ...] = ()

    @property
    def p(self) -> float:
        """The p value of the two-sided t test.

        It is 1 without variation, since equal differences result from rounding or equal models.
        """
        if self.standard_error == 0:
            return 1.0
        return 2 * float(stats.t.sf(abs(self.mean) / self.standard_error, self.degrees))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean; NaN without variation."""
        if not self.standard_error > 0:
            return math.nan, math.nan
        half = float(stats.t.isf(LEVEL / 2, self.degrees)) * self.standard_error
        return self.mean - half, self.mean + half

    def equivalence_p(self, margin: float) -> float:
        """The p value of two one-sided t tests of equivalence within ``margin`` (Schuirmann 1987).

        The margin is above 0, in the unit of the outcome.
        """
        if self.standard_error == 0:
            return 1.0
        least = (margin - abs(self.mean)) / self.standard_error
        return float(stats.t.sf(least, self.degrees))


def describe(scores: Sequence[float], test_to_train: float = 0.0) -> Sample:
    """The summary of one score for each seed; for ``test_to_train`` see :func:`compare`.

    Raises:
        ValueError: no score, or one that is not finite.
    """
    values = _finite(scores)
    mean, n, half = float(values.mean()), len(values), math.nan
    if n > 1:
        half = half_interval(values, test_to_train)
    return Sample(mean, _standard_deviation(values), (mean - half, mean + half), n)


def compare(
    arm: Mapping[int, float], baseline: Mapping[int, float], test_to_train: float = 0.0
) -> Comparison:
    """Compare two arms by the score of each seed; paired by the seeds that they share.

    One seed that they share is no reason to leave out the others: unless it is all that an arm has,
    they are independent samples.

    Args:
        test_to_train: the number of test examples over that of training examples, if each seed
            splits the corpus at random; otherwise 0.

    Raises:
        ValueError: an arm without a score, or a score that is not finite.
    """
    shared = sorted(arm.keys() & baseline.keys())
    if len(shared) > 1 or (shared and min(len(arm), len(baseline)) == 1):
        return compare_paired([arm[seed] - baseline[seed] for seed in shared], test_to_train)
    return compare_independent(list(arm.values()), list(baseline.values()))


def compare_paired(differences: Scores, test_to_train: float = 0.0) -> Comparison:
    """Test the mean of differences by seed: Student's t test and the sign-flip permutation test.

    Random splits of one corpus overlap, so their differences are correlated. Nadeau and Bengio
    (2003, Eq. 9) estimate the variance of the mean by ``(1/n + test/train) s^2`` instead of
    ``s^2 / n``. The permutation test has no such correction.
    """
    values = _finite(differences)
    n, mean, by_seed = len(values), float(values.mean()), tuple(map(float, values))
    if n == 1:
        return Comparison(mean, by_seed=by_seed)
    error = _standard_deviation(values) * math.sqrt(1 / n + test_to_train)
    p, exact = sign_flip_p(values)
    test = "paired t, overlapping splits" if test_to_train else "paired t"
    return Comparison(mean, error, n - 1, p, exact, test, n, by_seed)


def compare_independent(arm: Scores, baseline: Scores) -> Comparison:
    """Test the difference of two means: Welch's t test and the permutation test."""
    ours, theirs = _finite(arm), _finite(baseline)
    mean, n = float(ours.mean() - theirs.mean()), min(len(ours), len(theirs))
    if n == 1:
        return Comparison(mean)
    errors = [_standard_deviation(side) ** 2 / len(side) for side in (ours, theirs)]
    error, degrees = math.sqrt(sum(errors)), math.inf
    if error:
        parts = sum(e**2 / (len(side) - 1) for e, side in zip(errors, (ours, theirs)))
        degrees = sum(errors) ** 2 / parts
    p, exact = division_p(ours, theirs)
    return Comparison(mean, error, degrees, p, exact, "Welch", n)


def sign_flip_p(differences: np.ndarray) -> tuple[float, bool]:
    """The two-sided p value of the sign-flip test of a mean of 0, and whether it is exact.

    p is the share of the 2^n assignments of signs with a sum at least as far from 0 as the observed
    one. Above :data:`EXACT_SEEDS` seeds, a fixed random sample of assignments is used.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) <= EXACT_SEEDS:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate([sums + value, sums - value])
        return _share(sums, float(values.sum())), True
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (DRAWS, len(values)))
    return _share(np.append(signs @ values, values.sum()), float(values.sum())), False


def division_p(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, bool]:
    """The two-sided p value of the permutation test of two samples, and whether it is exact.

    Above :data:`EXACT_DIVISIONS` divisions into groups of these sizes, a fixed random sample of
    them is used.
    """
    pooled = np.concatenate([ours, theirs])
    pooled = pooled - pooled.mean()  # the sum of one group then determines the difference of means
    size, observed = len(ours), float(pooled[: len(ours)].sum())
    if math.comb(len(pooled), size) <= EXACT_DIVISIONS:
        return _share(_sums_of_subsets(pooled, size), observed), True
    divisions = _sample_of_divisions(len(pooled), size)
    return _share(np.append(pooled[divisions].sum(axis=1), observed), observed), False


@lru_cache(maxsize=4)
def _sample_of_divisions(count: int, size: int) -> np.ndarray:
    """(DRAWS, size): the indices of one group of each division."""
    return np.random.default_rng(0).random((DRAWS, count)).argsort(axis=1)[:, :size]


def _sums_of_subsets(values: np.ndarray, size: int) -> np.ndarray:
    """The sums of all subsets of ``size`` values."""
    sums = [np.zeros(1), *(np.zeros(0) for _ in range(size))]  # indexed by the size of the subset
    for value in values:
        for count in range(size, 0, -1):
            sums[count] = np.concatenate([sums[count], sums[count - 1] + value])
    return sums[size]


def _share(statistics: np.ndarray, observed: float) -> float:
    """The share of statistics that are at least as far from 0 as the observed one."""
    tie = TIE * float(np.abs(statistics).max())
    return float((np.abs(statistics) >= abs(observed) - tie).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of the p values of one family (Holm 1979); NaN values remain NaN."""
    known = [p for p in p_values if not math.isnan(p)]
    corrected = iter(multipletests(known, method="holm")[1] if known else [])
    return [p if math.isnan(p) else float(next(corrected)) for p in p_values]


def verdict(
    difference: float,
    p: float,
    *,
    higher_is_better: bool,
    equivalence_p: float = math.nan,
) -> Verdict:
    """The verdict by corrected p values; NaN if not tested.

    A declared test of equivalence takes precedence, since a difference within the margin may be
    significant too.
    """
    if math.isnan(p):
        return Verdict.NOT_TESTED
    if equivalence_p < LEVEL:
        return Verdict.EQUIVALENT
    if p < LEVEL:
        return Verdict.BETTER if (difference > 0) == higher_is_better else Verdict.WORSE
    return Verdict.UNDECIDED


# Tables


COLUMNS = (
    *("arm", "baseline", "outcome", "n", "mean", "standard_deviation", "low", "high"),
    *("difference", "difference_low", "difference_high", "test", "p", "p_permutation", "exact"),
    *("p_holm", "margin", "verdict", "family", "declared", "by_seed"),
    *("seeds_paired", "seeds_unpaired"),
)


def compare_arms(
    runs: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    outcome: str = SCORE,
    primary: Sequence[PrimaryComparison] = (),
) -> pd.DataFrame:
    """Compare arms with their baselines, one row per pair.

    A pair that the study declares for this outcome is tested as declared, and Holm's correction
    includes all declared comparisons. The other pairs are exploratory, and a family of their own.

    Args:
        pairs: pairs of names of arms; an arm that is its own baseline is described, not tested.
        outcome: as in a study file.

    Returns:
        :data:`COLUMNS`, NaN if undefined. ``n``, ``mean``, ``standard_deviation``, ``low`` and
        ``high`` describe the arm; ``difference`` and its 95 % interval are the arm minus the
        baseline. ``test`` is the test of ``p``; for a declared equivalence, that is two one-sided
        tests within ``margin``, without a permutation test. ``family`` is primary or exploratory; a
        comparison that was declared after the runs (``declared``) is exploratory. ``seeds_paired``
        and ``seeds_unpaired`` are the seeds per arm needed to detect the metric's difference of
        interest, given the standard deviations of this pair; NaN for losses.

    Raises:
        CommandError: the metric or the runs do not have the outcome.
    """
    declared = {
        (row["arm"], row["baseline"]): row
        for row in compare_primary(runs, primary).to_dict("records")
        if row["outcome"] == outcome
    }
    rows = [declared.get(pair) or _row(runs, *pair, outcome) for pair in dict.fromkeys(pairs)]
    _correct([row for row in rows if not row["declared"]])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def compare_primary(runs: pd.DataFrame, primary: Sequence[PrimaryComparison]) -> pd.DataFrame:
    """The declared comparisons of all outcomes, with the columns of :func:`compare_arms`."""
    rows = [_row(runs, each.arm, each.baseline, each.outcome, each) for each in primary]
    _correct(rows)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(
    runs: pd.DataFrame,
    arm: str,
    baseline: str,
    outcome: str,
    declared: PrimaryComparison | None = None,
) -> dict[str, Any]:
    """A comparison, with p not yet corrected."""
    ours, theirs = (_by_seed(runs, side, outcome) for side in (arm, baseline))
    ratio, metric = split_ratio(runs), find_metric(runs["metric"].iloc[0])
    row: dict[str, Any] = dict.fromkeys(COLUMNS, math.nan)
    row |= {"arm": arm, "baseline": baseline, "outcome": outcome, "n": len(ours), "by_seed": ()}
    row |= {"test": "", "exact": True, "family": EXPLORATORY, "declared": ""}
    row |= {"higher_is_better": higher_is_better(runs, outcome), "equivalence_p": math.nan}
    if ours:
        sample = describe(list(ours.values()), ratio)
        row["mean"], row["standard_deviation"] = sample.mean, sample.deviation or math.nan
        row["low"], row["high"] = sample.interval
    if declared is not None:
        row["declared"] = declared.declared
        row["family"] = PRIMARY if declared.declared == BEFORE else EXPLORATORY
    if arm == baseline or not (ours and theirs):
        return row
    if declared is not None and declared.paired and not ours.keys() & theirs.keys():
        raise CommandError(
            f"{arm} and {baseline} have no seed in common, and the study declares them paired"
        )
    if declared is None or declared.paired:
        comparison = compare(ours, theirs, ratio)
    else:
        comparison = compare_independent(list(ours.values()), list(theirs.values()))
    low, high = comparison.interval
    row |= {"difference": comparison.mean, "difference_low": low, "difference_high": high}
    row |= {name: getattr(comparison, name) for name in ("test", "p", "p_permutation", "exact")}
    row |= {"by_seed": comparison.by_seed}
    if declared is not None and declared.test == EQUIVALENCE and comparison.n > 1:
        row["margin"], row["p_permutation"] = declared.size, math.nan
        row["equivalence_p"] = comparison.equivalence_p(row["margin"])
        row["test"] = f"{EQUIVALENCE_BY}{comparison.test}"
    # of losses, no difference is said to be of interest
    of_interest = metric.of_interest if outcome == SCORE else math.nan
    needed = partial(seeds_needed, difference=of_interest, test_to_train=ratio)
    deviations = [_standard_deviation(np.array(list(side.values()))) for side in (ours, theirs)]
    of_arms = math.sqrt(sum(deviation**2 for deviation in deviations) / 2)
    row["seeds_paired"] = needed(_standard_deviation(np.array(row["by_seed"])), paired=True)
    return row | {"seeds_unpaired": needed(of_arms, paired=False)}


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    """Correct the p values of a family, and add the verdicts.

    A row with a test of equivalence has two null hypotheses, at most one of which is true. Holm's
    correction applies to the declared test of each row; the p of the other one is multiplied by the
    number of rows.
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
        row["p"] = row["equivalence_p"] if is_equivalence else row["p"]
    for row in rows:
        if math.isnan(row["p"]):
            same = row["arm"] == row["baseline"]
            row["verdict"] = Verdict.BASELINE if same else Verdict.NOT_TESTED


def outcome_values(runs: pd.DataFrame, outcome: str = SCORE) -> pd.Series:
    """An outcome of each run.

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
    """Whether a higher value of an outcome is better; False for losses."""
    metric = find_metric(runs["metric"].iloc[0])
    return outcome not in (*LOSSES, *metric.losses) and metric.higher_is_better


def split_ratio(runs: pd.DataFrame) -> float:
    """Test examples over training examples if each seed splits the corpus at random, else 0."""
    if "split_seed" not in runs or runs["split_seed"].isna().any():
        return 0.0
    tested = f"scores.{find_metric(runs['metric'].iloc[0]).headline}.sentences"
    for name in (tested, "data.training_pairs"):
        if name not in runs or runs[name].isna().any():
            raise CommandError(f"a result on a random split lacks {name}, which its interval needs")
    return float((runs[tested] / runs["data.training_pairs"]).mean())


def _by_seed(runs: pd.DataFrame, side: str, outcome: str) -> dict[int, float]:
    """An outcome of an arm by seed; of a difference of two arms, for the seeds of both."""
    every, columns = outcome_values(runs, outcome), []
    for arm in terms(side):
        of_arm = runs["arm"] == arm
        columns.append(every[of_arm].set_axis(runs.loc[of_arm, "seed"]).dropna())
    values = columns[0] if len(columns) == 1 else (columns[0] - columns[1]).dropna()
    return values.to_dict()


# Power


def seeds_needed(
    standard_deviation: float,
    difference: float,
    *,
    paired: bool,
    comparisons: int = 1,
    test_to_train: float = 0.0,
) -> float:
    """The seeds per arm that a t test needs for 80 % power at the 5 % level.

    Infinite if no number suffices, as may happen on random splits of one corpus; NaN without a
    deviation.

    Args:
        standard_deviation: that of the differences by seed if paired, otherwise that of each arm.
        comparisons: the size of the family, by which the level is divided.
        test_to_train: see :func:`compare`.
    """
    if not (standard_deviation > 0 and difference > 0):
        return math.nan
    effect, level = difference / standard_deviation, LEVEL / comparisons

    def power(n: int) -> float:  # from the noncentral F distribution of t squared
        degrees = n - 1 if paired else 2 * n - 2
        variance = (1 if paired else 2) * (1 / n + test_to_train)
        critical = stats.f.isf(level, 1, degrees)
        return float(stats.ncf.sf(critical, 1, degrees, effect**2 / variance))

    counts = range(2, MOST_SEEDS)
    return counts[bisect_left(counts, POWER, key=power)] if power(MOST_SEEDS) > POWER else math.inf


def resolution(table: pd.DataFrame, of_interest: float, test_to_train: float = 0.0) -> pd.DataFrame:
    """The seeds needed to detect a difference, from all arms of :func:`compare_arms` together.

    The standard deviation of the differences by seed is pooled over arms, unless Bartlett's test
    shows that it differs between them.

    Args:
        test_to_train: see :func:`compare`.

    Returns:
        columns ``quantity`` and ``value``; empty if fewer than two seeds are paired.
    """
    samples = [values for values in table["by_seed"] if len(values) > 1]
    values: dict[str, float] = {}
    if samples:
        p = equal_variances_p(samples)
        values["p of Bartlett's test that all differences have one standard deviation"] = p
        if not p < LEVEL:
            deviation = pooled_standard_deviation(samples)
            values["standard deviation of the differences by seed, pooled"] = deviation
            for count in dict.fromkeys((1, len(samples))):
                text = f"paired seeds that show a difference of {of_interest:g}, of {count}"
                values[text] = seeds_needed(
                    deviation,
                    of_interest,
                    paired=True,
                    comparisons=count,
                    test_to_train=test_to_train,
                )
    return pd.DataFrame(values.items(), columns=["quantity", "value"])


def equal_variances_p(samples: Sequence[Sequence[float]]) -> float:
    """The p value of Bartlett's test of equal variances; NaN if a sample does not vary."""
    groups = [np.asarray(sample, dtype=float) for sample in samples if len(sample) > 1]
    if len(groups) < 2 or any(_standard_deviation(group) == 0 for group in groups):
        return math.nan
    return float(stats.bartlett(*groups).pvalue)


def pooled_standard_deviation(samples: Sequence[Sequence[float]]) -> float:
    """The pooled standard deviation within samples; NaN without degrees of freedom."""
    groups = [np.asarray(sample, dtype=float) for sample in samples if len(sample) > 1]
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return math.nan
    squares = sum((len(group) - 1) * _standard_deviation(group) ** 2 for group in groups)
    return math.sqrt(squares / degrees)


def _standard_deviation(values: np.ndarray) -> float:
    """The standard deviation with n - 1; exactly 0 for equal values, despite rounding."""
    if len(values) < 2:
        return math.nan
    largest = float(np.abs(values).max())
    return float(values.std(ddof=1)) if np.ptp(values) > TIE * largest else 0.0


def _finite(scores: Scores) -> np.ndarray:
    values = np.asarray(scores, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the scores are {list(scores)}; at least one is needed, all finite")
    return values
