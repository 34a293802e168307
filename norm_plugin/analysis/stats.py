"""Scores over seeds: intervals, differences to a baseline, tests, and how many seeds are needed.

A seed is the unit of observation: a score of one seed is one draw from what training with that
norm gives. Norms are compared as independent samples. Equal seeds alone do not pair two norms: the
seed draws the weights and the order of the batches, and what the two norms make of them soon has
nothing in common. A corpus that is split at random by the seed does pair them, since an easy test
set is easy for both.

The tests are those of SciPy and statsmodels.
"""

from __future__ import annotations

import math
import statistics
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from norm_plugin.experiments.comparable import half_interval

LEVEL = 0.05
"""A difference is shown where a corrected p is below this."""
CONFIDENCE = 1 - LEVEL
POWER = 0.8
"""The share of experiments that would show a difference which is there."""
RESAMPLES = 9_999
"""The most divisions of the seeds that the permutation test takes."""
MOST_SEEDS = 10**9
"""The largest number of seeds that is looked for."""
ROUNDING = 1e-9
"""Scores have four digits; differences of them that are off by less are equal."""


BASELINE, ONE_SEED, NOT_SHOWN = "baseline", "not tested with one seed", "no difference shown"
SHOWN = {True: "higher than the baseline", False: "lower than the baseline"}
IF_NORMAL = {
    True: "higher, if scores are normally distributed",
    False: "lower, if scores are normally distributed",
}
"""Where only the t test shows it, which needs fewer seeds and assumes more."""


@dataclass(frozen=True)
class Sample:
    """The scores of one setting, one a seed.

    Attributes:
        mean: of the scores.
        deviation: standard deviation with n - 1; None for one seed.
        interval: Student's 95 % interval of the mean; None for one seed.
        count: of seeds.
    """

    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    count: int


@dataclass(frozen=True)
class Difference:
    """A setting less the baseline.

    Attributes:
        mean: difference of the two means, or mean of the differences by seed.
        interval: 95 % interval of it, Welch's, or Student's of paired seeds; None where a side has
            one seed, or where nothing varies.
        p: of the permutation test, two-sided; None where a side has one seed.
        t_p: of the t test that belongs to the interval, two-sided, which assumes normally
            distributed scores; None where there is no interval.
        least_p: the smallest p that so many seeds can give; None where a side has one seed.
        by_seed: the differences of paired seeds; empty for independent samples.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float | None
    t_p: float | None
    least_p: float | None
    by_seed: tuple[float, ...] = ()


def compare_arms(
    runs: pd.DataFrame, pairs: Sequence[tuple[str, str]], outcome: str = "score"
) -> pd.DataFrame:
    """A row for each pair of an arm and its baseline; p is corrected over all rows.

    Seeds are paired where each has a random split of the corpus, the same for all arms.

    Args:
        runs: with columns ``arm``, ``seed``, ``split_seed`` and that of the outcome.
        pairs: of names of arms; an arm that is its own baseline is only described.

    Returns:
        columns ``arm``, ``baseline`` and ``seeds``; ``mean``, ``deviation``, ``low`` and ``high``
        of the arm, as in :class:`Sample`; ``difference``, ``difference_low``, ``difference_high``,
        ``p``, ``t_p``, ``least_p`` and ``by_seed``, as in :class:`Difference`; ``p_holm`` and
        ``t_p_holm``, after Holm's correction; and the ``verdict``. What there is not is NaN.
    """
    rows = []
    for arm, baseline in pairs:
        ours, theirs = (runs[runs["arm"] == name].set_index("seed") for name in (arm, baseline))
        sample = describe(ours[outcome].tolist())
        low, high = sample.interval or (None, None)
        row = {"arm": arm, "baseline": baseline, "seeds": tuple(ours.index), "mean": sample.mean}
        row |= {"deviation": sample.deviation, "low": low, "high": high, "by_seed": ()}
        if arm != baseline:
            paired = bool(ours["split_seed"].notna().all())
            test = difference(ours[outcome].to_dict(), theirs[outcome].to_dict(), paired)
            low, high = test.interval or (None, None)
            row |= {"difference": test.mean, "difference_low": low, "difference_high": high}
            row |= {"p": test.p, "t_p": test.t_p, "least_p": test.least_p, "by_seed": test.by_seed}
        rows.append(row)
    numbers = ["deviation", "low", "high", "difference", "difference_low", "difference_high"]
    numbers += ["p", "t_p", "least_p"]
    table = pd.DataFrame(rows).reindex(
        columns=[*rows[0], *(n for n in numbers if n not in rows[0])]
    )
    table[numbers] = table[numbers].astype(float)
    for p in ("p", "t_p"):
        tested = table[p].notna()
        table.loc[tested, f"{p}_holm"] = holm(table.loc[tested, p].tolist())
    table["verdict"] = [_verdict(row) for row in table.to_dict("records")]
    return table


def _verdict(row: Mapping[str, float]) -> str:
    """What may be said: a difference is shown where a corrected p is below 5 %."""
    if row["arm"] == row["baseline"]:
        return BASELINE
    if math.isnan(row["p_holm"]):
        return ONE_SEED
    if row["p_holm"] < LEVEL:
        return SHOWN[row["difference"] > 0]
    return IF_NORMAL[row["difference"] > 0] if row["t_p_holm"] < LEVEL else NOT_SHOWN


def resolution(runs: pd.DataFrame, table: pd.DataFrame, of_interest: float) -> pd.DataFrame:
    """What the tests of a table can show with its seeds.

    Args:
        runs: as for :func:`compare_arms`.
        table: what it gave, with an outcome ``score``.
        of_interest: the difference that is to be shown.

    Returns:
        columns ``quantity`` and ``value``; None where the table has no test.
    """
    tests = table[table["p"].notna()]
    others = int((table["arm"] != table["baseline"]).sum())
    by_seed = [values for values in tests["by_seed"] if values]
    paired = bool(by_seed)
    samples = by_seed or [scores.tolist() for _, scores in runs.groupby("arm")["score"]]
    deviation = pooled_deviation(samples)
    least = tests["least_p"].min()
    rows: list[tuple[str, float | None]] = [
        ("smallest p of the permutation test with so many seeds", least),
        (f"the same after Holm, of {len(tests)} tests", min(1.0, least * len(tests))),
        (
            f"seeds an arm with which {others} comparisons can show a difference",
            seeds_for_test(others, paired),
        ),
        (
            f"standard deviation {'of differences by seed' if paired else 'between seeds'}, pooled",
            deviation,
        ),
        ("its degrees of freedom", sum(len(sample) - 1 for sample in samples)),
    ]
    for comparisons in dict.fromkeys((1, others)):
        needed = deviation and seeds_needed(deviation, of_interest, comparisons, paired)
        level = "" if comparisons == 1 else f", the level divided by {comparisons}"
        rows.append(
            (f"seeds an arm to show a difference of {of_interest:g}{level}", needed or None)
        )
    if tests.empty:
        rows = []
    return pd.DataFrame(rows, columns=["quantity", "value"])


def describe(scores: Sequence[float]) -> Sample:
    """Mean, deviation and interval of scores, one a seed.

    Raises:
        ValueError: no score, or one that is not finite.
    """
    values = _finite(scores)
    if len(values) == 1:
        return Sample(float(values[0]), None, None, 1)
    mean, half = float(values.mean()), half_interval(values, CONFIDENCE)
    return Sample(mean, _deviation(values), (mean - half, mean + half), len(values))


def difference(
    scores: Mapping[int, float], baseline: Mapping[int, float], paired: bool
) -> Difference:
    """The difference between two settings, from their scores by seed.

    Args:
        paired: whether a seed gives both settings the same random split of the corpus. Then only
            the seeds that both have count; without one there is no test.
    """
    if not paired:
        return compare(list(scores.values()), list(baseline.values()))
    by_seed = [scores[seed] - baseline[seed] for seed in scores if seed in baseline]
    if by_seed:
        return compare_paired(by_seed)
    mean = statistics.mean(scores.values()) - statistics.mean(baseline.values())
    return Difference(mean, None, None, None, None)


def compare(scores: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The difference between two settings, as independent samples.

    The permutation test exchanges seeds between the two settings. It takes every division where
    there are at most :data:`RESAMPLES` of them, and so is exact for up to seven seeds a side. Else
    it draws as many at random.

    Raises:
        ValueError: no score on a side, or one that is not finite.
    """
    ours, theirs = _finite(scores), _finite(baseline)
    mean = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) == 1:
        return Difference(mean, None, None, None, None)
    test = stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=0,
    )
    least = least_p(len(ours), len(theirs))
    interval, t_p = _welch(ours, theirs)
    return Difference(mean, interval, float(test.pvalue), t_p, least)


def compare_paired(differences: Sequence[float]) -> Difference:
    """The difference between two settings, from its value at each seed.

    The permutation test exchanges the two settings within a seed, which changes the sign of its
    difference. It takes every choice of signs for up to 13 seeds.

    Raises:
        ValueError: no difference, or one that is not finite.
    """
    values = _finite(differences)
    mean, by_seed = float(values.mean()), tuple(map(float, values))
    if len(values) == 1:
        return Difference(mean, None, None, None, None, by_seed)
    test = stats.permutation_test(
        (values,),
        lambda a, axis: a.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=0,
    )
    interval, t_p = None, None
    if np.ptp(values) > ROUNDING:
        half = half_interval(values, CONFIDENCE)
        interval, t_p = (mean - half, mean + half), float(stats.ttest_1samp(values, 0).pvalue)
    least = least_p_paired(len(values))
    return Difference(mean, interval, float(test.pvalue), t_p, least, by_seed)


def _welch(
    ours: np.ndarray, theirs: np.ndarray
) -> tuple[tuple[float, float], float] | tuple[None, None]:
    """Interval and p of Welch's t test; none where neither side varies."""
    if max(np.ptp(ours), np.ptp(theirs)) <= ROUNDING:
        return None, None
    with warnings.catch_warnings():  # SciPy warns of equal scores on one side, whose variance is 0
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        test = stats.ttest_ind(ours, theirs, equal_var=False)
        interval = test.confidence_interval(CONFIDENCE)
    return (float(interval.low), float(interval.high)), float(test.pvalue)


def least_p(ours: int, theirs: int) -> float:
    """The smallest two-sided p that the permutation test can give.

    It is twice the smaller one-sided p, to which the division that was seen always counts.

    Args:
        ours: seeds on one side, two or more.
        theirs: seeds on the other.
    """
    return 2 / min(math.comb(ours + theirs, ours), RESAMPLES + 1)


def least_p_paired(seeds: int) -> float:
    """The same of paired seeds, two or more."""
    return 2 / min(2**seeds, RESAMPLES + 1)


def seeds_for_test(comparisons: int, paired: bool = False) -> int | None:
    """With how many seeds a side the permutation test can show a difference at all.

    None where even :data:`RESAMPLES` divisions are too few.

    Args:
        comparisons: of the table, over which p is corrected.
        paired: whether the seeds are.
    """
    counts = range(2, 15)  # from 8 on, or 14 if paired, p becomes no smaller
    least = least_p_paired if paired else lambda seeds: least_p(seeds, seeds)
    return next((n for n in counts if least(n) * comparisons < LEVEL), None)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of all p values of one table (Holm 1979)."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def seeds_needed(
    deviation: float, difference: float, comparisons: int = 1, paired: bool = False
) -> int:
    """How many seeds a side show a difference between two means.

    By the two-sided t test at the 5 % level, in 80 % of experiments, where both sides have this
    standard deviation.

    Args:
        deviation: standard deviation between seeds, in points of the score, above 0; if paired,
            that of the differences.
        difference: to be shown, in the same points, above 0.
        comparisons: by which the level is divided (Bonferroni), as Holm does for the smallest p.
        paired: whether the seeds are.
    """
    if not (deviation > 0 and difference > 0):
        raise ValueError(
            f"deviation is {deviation} and difference is {difference}; both have to be above 0"
        )
    effect, level = difference / deviation, LEVEL / comparisons
    counts = range(2, MOST_SEEDS)
    return counts[bisect_left(counts, POWER, key=lambda n: _power(effect, n, level, paired))]


def _power(effect: float, count: int, level: float, paired: bool) -> float:
    """The power of the two-sided t test with ``count`` seeds a side.

    t^2 has the noncentral F distribution. SciPy's noncentral t gives NaN for large effects.

    Args:
        effect: the difference in standard deviations.
    """
    freedom, shift = (count - 1, count) if paired else (2 * count - 2, count / 2)
    bound = stats.f.isf(level, 1, freedom)
    return float(stats.ncf.sf(bound, 1, freedom, shift * effect**2))


def pooled_deviation(samples: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation between seeds over all settings; None where none has two seeds."""
    groups = [np.asarray(scores, dtype=float) for scores in samples if len(scores) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * _deviation(group) ** 2 for group in groups)
    return math.sqrt(squares / freedom)


def _deviation(values: np.ndarray) -> float:
    """With n - 1; exactly 0 for equal values, whose mean may be another by rounding."""
    return float(values.std(ddof=1)) if np.ptp(values) > ROUNDING else 0.0


def _finite(scores: Sequence[float]) -> np.ndarray:
    values = np.asarray(scores, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the scores are {list(scores)}; one or more are wanted, all finite")
    return values
