"""Statistics over seeds against their textbook formulas."""

from __future__ import annotations

import itertools
import math
import statistics

import pandas as pd
import pytest
from scipy import integrate, stats

from norm_plugin.analysis.report import p_text
from norm_plugin.analysis.stats import (
    BASELINE,
    IF_NORMAL,
    NOT_SHOWN,
    ONE_SEED,
    compare,
    compare_arms,
    compare_paired,
    describe,
    difference,
    holm,
    least_p,
    least_p_paired,
    pooled_deviation,
    resolution,
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
    assert difference.t_p is None


def test_the_interval_of_a_difference_is_welchs():
    variances = [statistics.variance(side) / 3 for side in (OURS, THEIRS)]
    freedom = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    difference = compare(OURS, THEIRS)
    assert difference.interval == pytest.approx(
        (difference.mean - half, difference.mean + half), abs=EXACT
    )
    t = difference.mean / math.sqrt(sum(variances))
    assert difference.t_p == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=EXACT)


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
    assert compare([35.1, 35.1], [35.2, 35.2]).t_p is None
    assert compare([35.1, 35.1], [35.2, 35.4]).interval is not None
    assert not recwarn  # SciPy has a warning of nearly identical data


PAIRED = [0.5, 0.7, 0.2, 0.9]


def test_the_paired_t_test_is_of_the_differences():
    difference = compare_paired(PAIRED)
    error = statistics.stdev(PAIRED) / 2
    half = stats.t.ppf(0.975, 3) * error
    low, high = difference.mean - half, difference.mean + half
    assert difference.interval == pytest.approx((low, high), abs=EXACT)
    assert difference.t_p == pytest.approx(2 * stats.t.sf(difference.mean / error, 3), abs=EXACT)
    assert difference.by_seed == tuple(PAIRED)


@pytest.mark.parametrize("values", [PAIRED, [0.5, -0.7, 0.2, 0.9], [0.5, -0.5, 0.1]])
def test_the_paired_permutation_test_counts_every_choice_of_signs(values):
    means = [
        statistics.mean(sign * abs(value) for sign, value in zip(signs, values))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    seen = statistics.mean(values)
    above = sum(mean >= seen - EXACT for mean in means) / len(means)
    below = sum(mean <= seen + EXACT for mean in means) / len(means)
    assert compare_paired(values).p == pytest.approx(min(1.0, 2 * min(above, below)), abs=EXACT)


@pytest.mark.parametrize(("seeds", "least"), [(3, 2 / 8), (10, 2 / 1024), (20, 2 / 10_000)])
def test_the_clearest_paired_difference_has_the_smallest_p(seeds, least):
    difference = compare_paired([1 + seed / 10 for seed in range(seeds)])
    assert difference.p == pytest.approx(least)
    assert difference.least_p == least_p_paired(seeds) == pytest.approx(least)


def test_one_paired_seed_and_equal_differences_have_no_t_test():
    alone = compare_paired([0.5])
    assert (alone.mean, alone.interval, alone.p, alone.t_p) == (0.5, None, None, None)
    equal = compare_paired([76.9 - 76.4, 77.1 - 76.6])  # not the same float
    assert (equal.interval, equal.t_p) == (None, None) and equal.p == 0.5


def test_paired_seeds_count_where_both_have_them():
    ours, theirs = {1: 61.0, 2: 91.0, 3: 55.0}, {1: 60.0, 2: 89.0, 4: 95.0}
    assert difference(ours, theirs, True) == compare_paired([1.0, 2.0])
    assert difference(ours, theirs, False) == compare([61.0, 91.0, 55.0], [60.0, 89.0, 95.0])
    none_shared = difference({1: 61.0, 2: 63.0}, {3: 60.0, 4: 60.0}, True)
    assert none_shared.mean == 2 and none_shared.p is None and none_shared.interval is None


@pytest.mark.parametrize("score", [29.87, 30.1, 35.94])
def test_equal_scores_have_a_deviation_of_zero(score):
    """Their mean may be off by rounding: the deviation of five times 29.87 is 4e-15 in NumPy."""
    assert describe([score] * 5).deviation == 0
    assert pooled_deviation([[score] * 5, [score] * 3]) == 0


def test_holm_multiplies_by_the_tests_that_are_left():
    # 0.01 * 3; 0.02 * 2; 0.04 * 1, raised to what stands before it
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == []


def test_seeds_needed_reach_the_power_and_one_fewer_does_not():
    def power(count, effect, level, paired):
        """Over all deviations s that may be measured; given s, the mean is normal."""
        freedom = (1 if paired else 2) * (count - 1)
        shift = effect * math.sqrt(count if paired else count / 2)
        bound = stats.t.isf(level / 2, freedom)

        def of(s):
            rejected = stats.norm.sf(bound * s - shift) + stats.norm.cdf(-bound * s - shift)
            return rejected * stats.chi.pdf(s * math.sqrt(freedom), freedom) * math.sqrt(freedom)

        return integrate.quad(of, 0, 8, limit=200)[0]

    for deviation, comparisons, paired in itertools.product(
        (0.23, 0.1, 0.05, 0.5, 0.02), (1, 12), (False, True)
    ):
        count = seeds_needed(deviation, 0.2, comparisons, paired)
        effect, level = 0.2 / deviation, 0.05 / comparisons
        assert power(count, effect, level, paired) >= 0.8
        assert count == 2 or power(count - 1, effect, level, paired) < 0.8


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


def runs_of(splits=False, **scores):
    """A table of runs from the scores of each arm, with seeds from 1."""
    rows = [
        {"arm": arm, "seed": seed, "score": score, "split_seed": seed if splits else None}
        for arm, values in scores.items()
        for seed, score in enumerate(values, start=1)
    ]
    return pd.DataFrame(rows)


def table_of(runs, baseline="base"):
    return compare_arms(runs, [(arm, baseline) for arm in dict.fromkeys(runs["arm"])])


def test_the_table_corrects_for_all_of_its_tests():
    runs = runs_of(base=THEIRS, alike=[34.3, 34.8, 34.5], far=[38, 38.4, 38.1])
    table = table_of(runs).set_index("arm")
    raw = [compare(values, THEIRS) for values in ([34.3, 34.8, 34.5], [38, 38.4, 38.1])]
    others = table.loc[["alike", "far"]]
    assert list(others["p_holm"]) == pytest.approx(holm([one.p for one in raw]))
    assert list(others["t_p_holm"]) == pytest.approx(holm([one.t_p for one in raw]))
    assert table.loc["base", "verdict"] == BASELINE
    assert table.loc["alike", "verdict"] == NOT_SHOWN
    # three seeds a side cannot give p < 0.1 by permutation, whatever the scores
    assert table.loc["far", "verdict"] == IF_NORMAL[True] and others["t_p_holm"]["far"] < 0.05
    assert table.loc["far", "difference_low"] > 2
    assert table.loc["far", "seeds"] == (1, 2, 3)


def test_five_seeds_can_show_a_difference():
    up = [seed / 10 for seed in range(5)]
    table = table_of(runs_of(base=[35 + one for one in up], low=[33 + one for one in up]))
    assert table["p_holm"][1] == pytest.approx(2 / 252)  # of 10 runs taken five at a time
    assert table["verdict"][1] == "lower than the baseline"


def test_five_seeds_show_nothing_among_seven_comparisons():
    up = [seed / 10 for seed in range(5)]
    low = {f"low{number}": [33 + one for one in up] for number in range(7)}
    table = table_of(runs_of(base=[35 + one for one in up], **low))[1:]
    assert (table["p"] < 0.05).all() and (table["p_holm"] > 0.05).all()
    assert set(table["verdict"]) == {IF_NORMAL[False]}


def test_one_seed_is_never_tested():
    table = table_of(runs_of(base=[35.0], far=[90.0]))
    assert table["verdict"][1] == ONE_SEED and math.isnan(table["p_holm"][1])
    assert resolution(runs_of(base=[35.0], far=[90.0]), table, 0.2).empty


SPLITS = (60.0, 90.0, 70.0, 80.0)  # far apart, which no unpaired test would forgive
GAINS = (1.0, 1.1, 0.9, 1.2)


def test_seeds_that_share_a_split_are_compared_one_by_one():
    good = [sum(pair) for pair in zip(SPLITS, GAINS)]
    runs = runs_of(splits=True, base=[*SPLITS, 50.0], good=good)  # the other lacks the fifth seed
    table = table_of(runs)
    assert table["difference"][1] == pytest.approx(1.05)
    assert table["by_seed"][1] == pytest.approx(GAINS)
    assert table["verdict"][1] == IF_NORMAL[True] and table["p"][1] == pytest.approx(2 / 2**4)
    shown = resolution(runs, table, 0.2).set_index("quantity")["value"]
    assert shown["seeds an arm with which 1 comparisons can show a difference"] == 6  # 2 / 2^6
    deviation = statistics.stdev(GAINS)
    pooled = shown["standard deviation of differences by seed, pooled"]
    assert pooled == pytest.approx(deviation)
    needed = seeds_needed(deviation, 0.2, paired=True)
    assert shown["seeds an arm to show a difference of 0.2"] == needed


def test_what_the_seeds_can_show():
    runs = runs_of(base=[35.0, 35.3, 34.9], alike=[35.1, 34.8, 35.2], far=[38, 38.4, 38.1])
    shown = resolution(runs, table_of(runs), 0.2).set_index("quantity")["value"]
    deviation = pooled_deviation([of["score"].tolist() for _, of in runs.groupby("arm")])
    assert list(shown) == pytest.approx(
        [
            0.1,  # 2 of the 20 divisions of six seeds
            0.2,
            5,
            deviation,
            6,
            seeds_needed(deviation, 0.2),
            seeds_needed(deviation, 0.2, 2),
        ]
    )


def test_another_outcome_can_be_compared():
    runs = runs_of(base=THEIRS, good=OURS).rename(columns={"score": "valid_loss"})
    table = compare_arms(runs, [("good", "base")], outcome="valid_loss")
    assert table["difference"][0] == pytest.approx(compare(OURS, THEIRS).mean)


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (None, "-"),
        (1.0, "1.000"),
        (0.0512, "0.051"),
        (0.0501, "0.0501"),
        (0.05, "0.05"),
        (0.0499, "0.0499"),
        (0.0005, "0.001"),
        (0.0002, "<0.001"),
    ],
)
def test_p_shows_on_which_side_of_the_level_it_is(p, text):
    assert p_text(p) == text
