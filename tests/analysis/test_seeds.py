"""Statistics over seeds against their textbook formulas."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from scipy import stats

from norm_plugin.analysis.seeds import (
    compare,
    describe,
    holm,
    least_p,
    pooled_deviation,
    seeds_for_test,
    seeds_needed,
)

OURS, THEIRS = [35.1, 35.6, 35.3], [34.2, 34.9, 34.4]
EXACT = 1e-9  # float64, a few operations


def test_the_interval_is_students():
    sample = describe(OURS)
    half = stats.t.ppf(0.975, 2) * statistics.stdev(OURS) / math.sqrt(3)
    assert sample.mean == pytest.approx(statistics.mean(OURS), abs=EXACT)
    assert sample.deviation == pytest.approx(statistics.stdev(OURS), abs=EXACT)
    low, high = sample.mean - half, sample.mean + half
    assert sample.interval == pytest.approx((low, high), abs=EXACT)


def test_one_seed_has_no_interval_and_no_test():
    assert describe([35.1]).interval is None
    difference = compare([35.1], THEIRS)
    assert difference.mean == pytest.approx(35.1 - statistics.mean(THEIRS), abs=EXACT)
    assert difference.interval is None and difference.p is None and difference.least_p is None
    assert difference.welch_p is None


def test_the_interval_of_a_difference_is_welchs():
    variances = [statistics.variance(side) / 3 for side in (OURS, THEIRS)]
    freedom = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    difference = compare(OURS, THEIRS)
    assert difference.interval == pytest.approx(
        (difference.mean - half, difference.mean + half), abs=EXACT
    )
    t = difference.mean / math.sqrt(sum(variances))
    assert difference.welch_p == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=EXACT)


@pytest.mark.parametrize("theirs", [THEIRS, [34.0, 35.2, 36.9], [35.0, 35.2]])
def test_the_permutation_test_counts_every_division(theirs):
    everything = OURS + theirs
    seen = statistics.mean(OURS) - statistics.mean(theirs)
    gaps = []
    for chosen in itertools.combinations(range(len(everything)), len(OURS)):
        ours = [everything[i] for i in chosen]
        rest = [everything[i] for i in range(len(everything)) if i not in chosen]
        gaps.append(statistics.mean(ours) - statistics.mean(rest))
    above = sum(gap >= seen - EXACT for gap in gaps) / len(gaps)
    below = sum(gap <= seen + EXACT for gap in gaps) / len(gaps)
    expected = min(1.0, 2 * min(above, below))
    assert compare(OURS, theirs).p == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(
    ("ours", "theirs", "least"),
    # of all divisions, one is the most extreme to each side; of more than 9,999 some are drawn
    [(3, 3, 2 / 20), (3, 2, 2 / 10), (2, 6, 2 / 28), (7, 7, 2 / 3432), (10, 10, 2 / 10_000)],
)
def test_the_clearest_difference_has_the_smallest_p(ours, theirs, least):
    difference = compare(
        [9 + seed / 10 for seed in range(ours)], [1 + s / 10 for s in range(theirs)]
    )
    assert difference.p == pytest.approx(least)
    assert difference.least_p == least_p(ours, theirs) == pytest.approx(least)


@pytest.mark.parametrize("comparisons", [1, 2, 7, 84, 85])
def test_the_test_shows_nothing_with_fewer_seeds(comparisons):
    count = seeds_for_test(comparisons)
    assert least_p(count, count) * comparisons < 0.05 <= least_p(count - 1, count - 1) * comparisons


def test_no_number_of_seeds_helps_a_test_of_very_many_settings():
    assert seeds_for_test(1000) is None


def test_equal_scores_on_both_sides_have_no_interval(recwarn):
    assert compare([35.1, 35.1], [35.2, 35.2]).interval is None
    assert compare([35.1, 35.1], [35.2, 35.2]).welch_p is None
    assert compare([35.1, 35.1], [35.2, 35.4]).interval is not None
    assert not recwarn  # SciPy has a warning of nearly identical data


def test_holm_multiplies_by_the_tests_that_are_left():
    # 0.01 * 3; 0.02 * 2; 0.04 * 1, raised to what stands before it
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == []


def test_seeds_needed_reach_the_power_and_one_fewer_does_not():
    def power(count, effect, level):
        freedom, shift = 2 * count - 2, effect * math.sqrt(count / 2)
        bound = stats.t.ppf(1 - level / 2, freedom)
        return stats.nct.sf(bound, freedom, shift) + stats.nct.cdf(-bound, freedom, shift)

    for deviation, comparisons in itertools.product((0.23, 0.1, 0.05, 0.5), (1, 7)):
        count, level = seeds_needed(deviation, 0.2, comparisons), 0.05 / comparisons
        assert power(count, 0.2 / deviation, level) >= 0.8
        assert count == 2 or power(count - 1, 0.2 / deviation, level) < 0.8


def test_the_deviation_is_pooled_over_settings():
    alone = [1.0, 3.0], [10.0, 10.0, 13.0], [7.0]
    squares = 2.0 + (1 + 1 + 4)
    assert pooled_deviation(alone) == pytest.approx(math.sqrt(squares / 3))
    assert pooled_deviation([[1.0], [2.0]]) is None


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf]])
def test_scores_that_are_none_are_refused(scores):
    with pytest.raises(ValueError, match="all finite"):
        describe(scores)


def test_a_deviation_of_zero_needs_no_seeds_that_could_be_counted():
    with pytest.raises(ValueError, match="above 0"):
        seeds_needed(0.0, 0.2)
