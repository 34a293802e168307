"""Scores over seeds: intervals, differences to a baseline, tests, and how many seeds are needed.

A seed is the unit of observation: a score of one seed is one draw from what training with that
norm gives. Norms are compared as independent samples. Equal seeds do not pair two norms: the seed
draws the weights and the order of the batches, and what the two norms make of them soon has
nothing in common.

The statistics are those of SciPy and statsmodels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower

from norm_plugin.experiments.comparable import half_interval

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
"""A difference is shown where a corrected p is below this."""
POWER = 0.8
"""The share of experiments that would show a difference which is there."""
RESAMPLES = 9_999
"""The most divisions of the seeds that the permutation test takes."""


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
        mean: difference of the two means.
        interval: Welch's 95 % interval of the difference; None where a side has one seed, or where
            neither side varies.
        p: of the permutation test, two-sided; None where a side has one seed.
        welch_p: of Welch's t test, two-sided, which assumes normally distributed scores; None where
            there is no interval.
        least_p: the smallest p that so many seeds can give; None where a side has one seed.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float | None
    welch_p: float | None
    least_p: float | None


def describe(scores: Sequence[float]) -> Sample:
    """Mean, deviation and interval of scores, one a seed.

    Raises:
        ValueError: no score, or one that is not finite.
    """
    values = _finite(scores)
    if len(values) == 1:
        return Sample(float(values[0]), None, None, 1)
    mean, half = float(values.mean()), half_interval(values, CONFIDENCE)
    return Sample(mean, float(values.std(ddof=1)), (mean - half, mean + half), len(values))


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
    interval, welch_p = _welch(ours, theirs)
    return Difference(mean, interval, float(test.pvalue), welch_p, least)


def _welch(
    ours: np.ndarray, theirs: np.ndarray
) -> tuple[tuple[float, float], float] | tuple[None, None]:
    """Interval and p of Welch's t test; none where neither side varies."""
    if not (np.ptp(ours) or np.ptp(theirs)):
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


def seeds_for_test(comparisons: int) -> int | None:
    """With how many seeds a side the permutation test can show a difference at all.

    None where even :data:`RESAMPLES` divisions are too few.

    Args:
        comparisons: of the table, over which p is corrected.
    """
    counts = range(2, 9)  # from 8 on, the divisions are drawn, and p becomes no smaller
    return next((n for n in counts if least_p(n, n) * comparisons < LEVEL), None)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of all p values of one table (Holm 1979)."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def seeds_needed(deviation: float, difference: float, comparisons: int = 1) -> int:
    """How many seeds a side show a difference between two means.

    By the two-sided t test at the 5 % level, in 80 % of experiments, where both sides have this
    standard deviation.

    Args:
        deviation: standard deviation between seeds, in points of the score, above 0.
        difference: to be shown, in the same points, above 0.
        comparisons: by which the level is divided (Bonferroni), as Holm does for the smallest p.
    """
    if not (deviation > 0 and difference > 0):
        raise ValueError(
            f"deviation is {deviation} and difference is {difference}; both have to be above 0"
        )
    effect, level = difference / deviation, LEVEL / comparisons
    for count in (2, 3, 4):  # the solver below starts where the t test has a power to speak of
        if TTestIndPower().power(effect, count, level) >= POWER:
            return count
    needed = TTestIndPower().solve_power(effect, alpha=level, power=POWER)
    return math.ceil(float(np.squeeze(needed)))


def pooled_deviation(samples: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation between seeds over all settings; None where none has two seeds."""
    groups = [np.asarray(scores, dtype=float) for scores in samples if len(scores) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return math.sqrt(squares / freedom)


def _finite(scores: Sequence[float]) -> np.ndarray:
    values = np.asarray(scores, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the scores are {list(scores)}; one or more are wanted, all finite")
    return values
