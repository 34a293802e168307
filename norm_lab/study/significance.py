"""Inference on outcomes over seeds: intervals, tests, equivalence and verdicts.

docs/statistics.md says which test is for what, and has the size and the power of each. The verdict
is that of a t test, so that it agrees with the interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
from scipy import stats

LEVEL = 0.05
"""The level of significance, for p values corrected within their family."""
CONFIDENCE = 1 - LEVEL
EXACT_SEEDS = 20
"""The sign-flip test is exact, with all 2^n assignments, up to this number of paired seeds."""
EXACT_DIVISIONS = 2_000_000
"""The permutation test of independent samples is exact up to this number of divisions."""
DRAWS = 19_999
"""The number of random permutations of a test that is not exact."""
TIE = 1e-9
"""Statistics with a smaller relative difference are considered equal, because sums of the same
scores in another order differ by rounding."""
OVERLAPPING = ", overlapping splits"
"""The end of the name of a t test with the variance that overlapping random splits need."""
Scores = Sequence[float] | np.ndarray


def half_interval(values: Scores, test_to_train: float = 0.0) -> float:
    """Return half the width of Student's 95 % interval of the mean of two or more values.

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
        """Return the p value of two one-sided t tests of equivalence (Schuirmann 1987).

        Args:
            margin: above 0, in the unit of the outcome.
        """
        if self.standard_error == 0:
            return 1.0
        least = (margin - abs(self.mean)) / self.standard_error
        return float(stats.t.sf(least, self.degrees))


def describe(scores: Sequence[float], test_to_train: float = 0.0) -> Sample:
    """Return the summary of one score for each seed; for ``test_to_train`` see :func:`compare`.

    Raises:
        ValueError: there is no score, or one that is not finite.
    """
    values = _finite(scores)
    mean, n, half = float(values.mean()), len(values), math.nan
    if n > 1:
        half = half_interval(values, test_to_train)
    return Sample(mean, standard_deviation(values), (mean - half, mean + half), n)


def compare(
    arm: Mapping[int, float], baseline: Mapping[int, float], test_to_train: float = 0.0
) -> Comparison:
    """Compare two arms by the score of each seed; paired by the seeds that they share.

    If the arms share one seed only, the others are not omitted: unless an arm has just that one,
    the arms are independent samples.

    Args:
        test_to_train: the number of test examples over that of training examples, if each seed
            splits the corpus at random; otherwise 0.

    Raises:
        ValueError: an arm has no score, or one that is not finite.
    """
    shared = sorted(arm.keys() & baseline.keys())
    if len(shared) > 1 or (shared and min(len(arm), len(baseline)) == 1):
        return compare_paired([arm[seed] - baseline[seed] for seed in shared], test_to_train)
    return compare_independent(list(arm.values()), list(baseline.values()), test_to_train)


def compare_paired(differences: Scores, test_to_train: float = 0.0) -> Comparison:
    """Test the mean of differences by seed: Student's t test and the sign-flip permutation test.

    Random splits of one corpus overlap, so their differences are correlated. Nadeau and Bengio
    (2003, Eq. 9) estimate the variance of the mean by ``(1/n + test/train) s^2`` instead of
    ``s^2 / n``. The permutation test has no such correction.
    """
    values = _finite(differences)
    by_seed = tuple(map(float, values))
    if len(values) == 1:
        return Comparison(by_seed[0], by_seed=by_seed)
    p, exact = sign_flip_p(values)
    test = f"paired t{OVERLAPPING}" if test_to_train else "paired t"
    mean = estimate(values, test_to_train)
    return replace(mean, p_permutation=p, exact=exact, test=test, by_seed=by_seed)


def compare_independent(arm: Scores, baseline: Scores, test_to_train: float = 0.0) -> Comparison:
    """Test the difference of two means: Welch's t test and the permutation test.

    On random splits, the variance of each mean is that of :func:`compare_paired`.
    """
    both = difference_of(estimate(arm, test_to_train), estimate(baseline, test_to_train))
    if both.n == 1:
        return Comparison(both.mean)
    p, exact = division_p(_finite(arm), _finite(baseline))
    test = f"Welch{OVERLAPPING}" if test_to_train else "Welch"
    return replace(both, p_permutation=p, exact=exact, test=test)


def estimate(values: Scores, test_to_train: float = 0.0) -> Comparison:
    """Return a mean over seeds with its standard error, as a difference from 0 without a test."""
    finite = _finite(values)
    error = standard_deviation(finite) * math.sqrt(1 / len(finite) + test_to_train)
    return Comparison(float(finite.mean()), error, len(finite) - 1, n=len(finite))


def difference_of(first: Comparison, second: Comparison) -> Comparison:
    """Return the difference of two independent estimates, with Welch's degrees of freedom."""
    sides, mean = (first, second), first.mean - second.mean
    error, degrees = math.hypot(first.standard_error, second.standard_error), math.inf
    if error > 0:
        degrees = error**4 / sum(each.standard_error**4 / each.degrees for each in sides)
    return Comparison(mean, error, degrees, n=min(first.n, second.n))


def sign_flip_p(differences: np.ndarray) -> tuple[float, bool]:
    """Return the two-sided p value of the sign-flip test of a mean of 0, and whether it is exact.

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


def division_p(first: np.ndarray, second: np.ndarray) -> tuple[float, bool]:
    """Return the two-sided p value of the permutation test of two samples, and whether it is exact.

    Above :data:`EXACT_DIVISIONS` divisions into groups of these sizes, a fixed random sample of
    them is used.
    """
    pooled = np.concatenate([first, second])
    pooled = pooled - pooled.mean()  # the sum of one group then determines the difference of means
    size, observed = len(first), float(pooled[: len(first)].sum())
    if math.comb(len(pooled), size) <= EXACT_DIVISIONS:
        return _share(_sums_of_subsets(pooled, size), observed), True
    divisions = _sample_of_divisions(len(pooled), size)
    return _share(np.append(pooled[divisions].sum(axis=1), observed), observed), False


@lru_cache(maxsize=4)
def _sample_of_divisions(count: int, size: int) -> np.ndarray:
    """Return (DRAWS, size): the indices of one group of each division."""
    return np.random.default_rng(0).random((DRAWS, count)).argsort(axis=1)[:, :size]


def _sums_of_subsets(values: np.ndarray, size: int) -> np.ndarray:
    """Return the sums of all subsets of ``size`` values."""
    sums = [np.zeros(1), *(np.zeros(0) for _ in range(size))]  # indexed by the size of the subset
    for value in values:
        for count in range(size, 0, -1):
            sums[count] = np.concatenate([sums[count], sums[count - 1] + value])
    return sums[size]


def _share(statistics: np.ndarray, observed: float) -> float:
    """Return the share of statistics that are at least as far from 0 as the observed one."""
    tie = TIE * float(np.abs(statistics).max())
    return float((np.abs(statistics) >= abs(observed) - tie).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's correction of the p values of one family (Holm 1979); NaN remains NaN.

    Each is multiplied by the number of those that are not less, and none is less than one before
    it, nor above 1. The function of statsmodels collects the garbage of the process at each call,
    which took a fifth of the time of a report.
    """
    p = np.array(p_values, dtype=float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]  # NaN is last
    p[order] = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)).clip(max=1)
    return p.tolist()


def verdict(
    difference: float,
    p: float,
    *,
    higher_is_better: bool,
    equivalence_p: float = math.nan,
) -> Verdict:
    """Return the verdict by corrected p values; NaN if not tested.

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


def pooled_standard_deviation(samples: Sequence[Sequence[float]]) -> float:
    """Return the pooled standard deviation within samples; NaN without degrees of freedom."""
    groups = [np.asarray(sample, dtype=float) for sample in samples if len(sample) > 1]
    degrees = sum(len(group) - 1 for group in groups)
    if not degrees:
        return math.nan
    squares = sum((len(group) - 1) * standard_deviation(group) ** 2 for group in groups)
    return math.sqrt(squares / degrees)


def standard_deviation(values: np.ndarray) -> float:
    """Return the standard deviation with n - 1; exactly 0 for equal values, despite rounding."""
    if len(values) < 2:
        return math.nan
    largest = float(np.abs(values).max())
    return float(values.std(ddof=1)) if np.ptp(values) > TIE * largest else 0.0


def _finite(scores: Scores) -> np.ndarray:
    values = np.asarray(scores, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the scores are {list(scores)}; at least one is needed, all finite")
    return values
