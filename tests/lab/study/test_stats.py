"""Statistics over seeds against SciPy, statsmodels and full enumeration."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from norm_lab.config.studies import AFTER, PrimaryComparison
from norm_lab.report import tables
from norm_lab.report.tables import primary_table
from norm_lab.study.comparisons import EXPLORATORY, PRIMARY, Comparisons, compare_arms
from norm_lab.study.power import equal_variances_p, resolution, seeds_needed
from norm_lab.study.significance import (
    Verdict,
    compare,
    compare_independent,
    compare_paired,
    describe,
    division_p,
    holm,
    pooled_standard_deviation,
    sign_flip_p,
    verdict,
)
from norm_plugin.io.command_line import CommandError

ARM = [41.2, 40.7, 42.3, 41.9, 40.1]
BASELINE = [40.8, 39.9, 41.0, 42.0, 39.5]
EXACT = 1e-9  # float64, a few operations


def by_seed(scores, first=1):
    return dict(enumerate(scores, start=first))


def test_the_interval_is_students():
    sample = describe(ARM)
    expected = stats.ttest_1samp(ARM, 0).confidence_interval()
    assert sample.mean == pytest.approx(statistics.mean(ARM), rel=EXACT)
    assert sample.deviation == pytest.approx(statistics.stdev(ARM), rel=EXACT)
    assert sample.interval == pytest.approx(tuple(expected), rel=EXACT)
    assert np.isnan(describe(ARM[:1]).interval).all()


@pytest.mark.parametrize("score", [29.87, 30.1, 35.94])
def test_equal_scores_have_a_deviation_of_zero(score):
    """Their mean may be off by rounding: the deviation of five times 29.87 is 4e-15 in NumPy."""
    assert describe([score] * 5).deviation == 0
    assert pooled_standard_deviation([[score] * 5, [score] * 3]) == 0


@pytest.mark.parametrize("scores", [[], [1.0, math.nan], [math.inf]])
def test_scores_that_are_none_are_refused(scores):
    for function in (describe, compare_paired):
        with pytest.raises(ValueError, match="all finite"):
            function(scores)


def test_shared_seeds_are_compared_pair_by_pair():
    comparison = compare(by_seed(ARM), by_seed(BASELINE) | {99: 0.0})
    expected = stats.ttest_rel(ARM, BASELINE)
    assert (comparison.test, comparison.n) == ("paired t", 5)
    assert comparison.by_seed == pytest.approx([a - b for a, b in zip(ARM, BASELINE)])
    assert comparison.p == pytest.approx(expected.pvalue, rel=EXACT)
    assert comparison.interval == pytest.approx(tuple(expected.confidence_interval()), rel=EXACT)


def test_arms_without_common_seeds_are_independent():
    comparison = compare(by_seed(ARM), by_seed(BASELINE, first=11))
    expected = stats.ttest_ind(ARM, BASELINE, equal_var=False)
    assert (comparison.test, comparison.by_seed) == ("Welch", ())
    assert comparison.p == pytest.approx(expected.pvalue, rel=EXACT)
    assert comparison.interval == pytest.approx(tuple(expected.confidence_interval()), rel=EXACT)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_sign_flip_test_is_scipys(n):
    differences = np.random.default_rng(n).normal(0.5, 1, n)
    expected = stats.permutation_test(
        (differences,),
        lambda sample, axis: sample.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert sign_flip_p(differences) == (pytest.approx(expected.pvalue, rel=EXACT), True)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 5), (7, 6)])
def test_the_test_of_independent_samples_counts_every_division(n, m):
    """SciPy doubles the smaller tail; with groups of two sizes that is another two-sided test."""
    generator = np.random.default_rng(n)
    ours, theirs = generator.normal(0.8, 1, n), generator.normal(0, 1, m)
    pooled, seen = np.concatenate([ours, theirs]), abs(ours.mean() - theirs.mean())
    as_far = [
        abs(np.mean(pooled[list(group)]) - np.mean(np.delete(pooled, group))) >= seen - 1e-12
        for group in itertools.combinations(range(n + m), n)
    ]
    assert division_p(ours, theirs) == (pytest.approx(np.mean(as_far), rel=EXACT), True)


def test_sums_of_equal_scores_are_ties():
    # 0.1 + 0.2 is not 0.3 in floating point
    assert sign_flip_p(np.array([0.1, 0.2, -0.3]))[0] == 1.0
    assert sign_flip_p(np.zeros(3))[0] == 1.0  # two arms whose scores are the same
    assert division_p(np.array([0.1, 0.2]), np.array([0.3, 0.0]))[0] == 1.0


def test_many_seeds_are_sampled_and_close_to_the_t_test():
    differences = np.random.default_rng(0).normal(0.4, 1, 40)
    p, exact = sign_flip_p(differences)
    assert not exact
    # 20,000 draws: the standard error of a p of 0.05 is 0.0015
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    ours, theirs = differences, np.random.default_rng(1).normal(0, 1, 40)
    p, exact = division_p(ours, theirs)
    assert not exact and p == pytest.approx(stats.ttest_ind(ours, theirs).pvalue, abs=0.01)


def test_overlapping_splits_widen_both_intervals():
    """Nadeau and Bengio: the variance of the mean is (1/n + 1/8) s^2 in place of s^2 / n."""
    differences, widening = [0.3, -0.1, 0.4, 0.2], math.sqrt((1 / 4 + 1 / 8) / (1 / 4))
    plain, corrected = compare_paired(differences), compare_paired(differences, 1 / 8)
    assert corrected.standard_error / plain.standard_error == pytest.approx(widening)
    assert corrected.p > plain.p and corrected.p_permutation == plain.p_permutation
    widths = [np.ptp(describe(differences, ratio).interval) for ratio in (0.0, 1 / 8)]
    assert widths[1] / widths[0] == pytest.approx(widening)
    sides = by_seed(ARM), by_seed(BASELINE, first=11)  # of other splits
    plain, corrected = compare(*sides), compare(*sides, 1 / 8)
    widening = math.sqrt((1 / 5 + 1 / 8) / (1 / 5))
    assert corrected.standard_error / plain.standard_error == pytest.approx(widening)
    assert corrected.degrees == pytest.approx(plain.degrees)  # of sides with as many seeds


def test_equivalence_is_statsmodels():
    ours, theirs = np.array(ARM), np.array(BASELINE)
    paired = compare(by_seed(ARM), by_seed(BASELINE)).equivalence_p(2.0)
    assert paired == pytest.approx(ttost_paired(ours, theirs, -2.0, 2.0)[0], rel=EXACT)
    independent = compare_independent(ARM, BASELINE).equivalence_p(2.0)
    expected = ttost_ind(ours, theirs, -2.0, 2.0, usevar="unequal")[0]
    assert independent == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(
    ("difference", "p", "equivalence_p", "expected"),
    [
        (1.0, 0.04, math.nan, Verdict.BETTER),
        (-1.0, 0.04, math.nan, Verdict.WORSE),
        (1.0, 0.05, math.nan, Verdict.UNDECIDED),
        (1.0, 0.5, 0.04, Verdict.EQUIVALENT),
        (1.0, 0.5, 0.05, Verdict.UNDECIDED),
        (1.0, 0.04, 0.04, Verdict.EQUIVALENT),  # a real difference, and a small one
        (-1.0, 0.04, 0.5, Verdict.WORSE),
        (1.0, math.nan, math.nan, Verdict.NOT_TESTED),
    ],
)
def test_verdicts(difference, p, equivalence_p, expected):
    result = verdict(difference, p, higher_is_better=True, equivalence_p=equivalence_p)
    assert result is expected
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}.get(expected)
    lower = verdict(difference, p, higher_is_better=False, equivalence_p=equivalence_p)
    assert lower is (opposite or expected)


def test_one_seed_has_no_test():
    for comparison in (compare({1: 2.0}, {1: 1.0}), compare({1: 2.0}, {2: 1.0, 3: 1.0})):
        assert comparison.mean == 1.0
        assert math.isnan(comparison.p) and math.isnan(comparison.interval[0])


def test_equal_differences_show_nothing():
    """76.9 - 76.4 and 77.1 - 76.6 are not the same float."""
    comparison = compare_paired([76.9 - 76.4, 77.1 - 76.6])
    assert (comparison.standard_error, comparison.p, comparison.p_permutation) == (0, 1, 0.5)
    assert math.isnan(comparison.interval[0])
    assert comparison.equivalence_p(0.6) == 1
    assert compare_independent([35.1, 35.1], [35.2, 35.2]).p == 1


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_holm_is_statsmodels(count):
    p = np.random.default_rng(count).uniform(0, 0.2, count)
    p[1:3] = p[:1]  # ties
    given = np.append(p, math.nan)
    corrected = holm(given)
    assert math.isnan(corrected.pop())
    assert corrected == (list(multipletests(p, method="holm")[1]) if count else [])
    assert list(given[:count]) == list(p)


@pytest.mark.parametrize(("paired", "power"), [(False, TTestIndPower()), (True, TTestPower())])
@pytest.mark.parametrize(("effect", "comparisons"), [(0.7, 1), (0.7, 12), (0.2, 1), (3.0, 1)])
def test_seeds_needed_is_statsmodels(paired, power, effect, comparisons):
    expected = math.ceil(power.solve_power(effect, alpha=0.05 / comparisons, power=0.8))
    assert seeds_needed(2.0, 2 * effect, paired=paired, comparisons=comparisons) == expected


def test_one_shared_seed_does_not_discard_the_others():
    arm, baseline = {1: 1.0, 2: 2.0, 3: 3.0}, {3: 5.0, 4: 6.0, 5: 7.0}
    assert compare(arm, baseline) == compare_independent([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])
    assert compare({1: 1.0}, {1: 3.0, 2: 9.0}).mean == -2.0  # nothing else is left


def test_no_number_of_splits_shows_a_small_difference():
    """The variance of the mean over n splits does not fall below 1/8 of that of a difference."""
    assert seeds_needed(2.0, 0.5, paired=True, test_to_train=1 / 8) == math.inf
    assert seeds_needed(2.0, 3.0, paired=True, test_to_train=1 / 8) > seeds_needed(
        2.0, 3.0, paired=True
    )
    assert math.isnan(seeds_needed(0.0, 0.2, paired=True))


def test_deviations_are_not_compared_with_one_that_is_0():
    assert math.isnan(equal_variances_p([[1.0, 1.001, 0.999, 1.0], [1.0, 1.0]]))


def test_the_deviation_is_pooled_by_degrees_of_freedom():
    samples = [1.0, 3.0], [10.0, 10.0, 13.0], [7.0]
    assert pooled_standard_deviation(samples) == pytest.approx(math.sqrt((2.0 + 6.0) / 3))
    assert math.isnan(pooled_standard_deviation([[1.0], [2.0]]))


# Tables


def runs_of(metric="bleu", outcome="score", **scores):
    """A table of runs from the scores of each arm, by seed from 1 or by a mapping."""
    rows = [
        {"arm": arm, "seed": seed, outcome: score, "metric": metric}
        for arm, values in scores.items()
        for seed, score in (values if isinstance(values, dict) else by_seed(values)).items()
    ]
    return pd.DataFrame(rows)


def table_of(runs, baseline="base", **options):
    pairs = [(arm, baseline) for arm in dict.fromkeys(runs["arm"])]
    return compare_arms(runs, pairs, **options).set_index("arm")


OTHER = [41.0, 40.6, 41.2, 42.4, 39.9]


def test_the_table_corrects_for_all_of_its_tests():
    runs = runs_of(base=BASELINE, good=ARM, other=OTHER, alone=[41.0])
    table = table_of(runs)
    p = [compare(by_seed(scores), by_seed(BASELINE)).p for scores in (ARM, OTHER)]
    assert list(table["p"]) == pytest.approx([math.nan, *p, math.nan], nan_ok=True)
    assert list(table["p_holm"][1:3]) == pytest.approx(holm(p))
    verdicts = [Verdict.BASELINE, Verdict.UNDECIDED, Verdict.BETTER, Verdict.NOT_TESTED]
    assert list(table["verdict"]) == verdicts
    assert set(table["family"]) == {EXPLORATORY} and set(table["declared"]) == {""}
    row = table.loc["good"]
    assert (row["n"], row["mean"]) == (5, pytest.approx(statistics.mean(ARM)))
    assert row["standard_deviation"] == pytest.approx(statistics.stdev(ARM))


def test_seeds_needed_are_by_the_deviations_of_the_pair():
    runs = runs_of(base=BASELINE, good=ARM, loud=[30.0, 50.0, 40.0, 20.0, 60.0])
    row = table_of(runs).loc["good"]
    deviation = statistics.stdev(a - b for a, b in zip(ARM, BASELINE))
    of_interest = 0.2  # of BLEU
    assert row["seeds_paired"] == seeds_needed(deviation, of_interest, paired=True)
    both = math.sqrt((statistics.variance(ARM) + statistics.variance(BASELINE)) / 2)
    assert row["seeds_unpaired"] == seeds_needed(both, of_interest, paired=False)


def test_no_seeds_are_counted_for_a_loss():
    """No study declares how large a difference of a loss matters."""
    losses = runs_of(outcome="valid_loss", base=BASELINE, good=ARM)
    row = table_of(losses, outcome="valid_loss").loc["good"]
    assert math.isnan(row["seeds_paired"]) and math.isnan(row["seeds_unpaired"])


def test_a_lower_loss_is_better():
    lower = [score - 1 for score in BASELINE]
    lower[0] -= 0.01
    losses = runs_of(outcome="valid_loss", base=BASELINE, low=lower)
    assert table_of(losses, outcome="valid_loss").loc["low", "verdict"] == Verdict.BETTER
    assert table_of(runs_of(base=BASELINE, low=lower)).loc["low", "verdict"] == Verdict.WORSE
    scores = runs_of("nats", base=BASELINE, low=lower)
    assert table_of(scores).loc["low", "verdict"] == Verdict.BETTER


def test_a_comparison_that_is_declared_the_other_way_round_is_not_tested_anew():
    runs = runs_of(base=BASELINE, good=ARM, other=OTHER)
    primary = [PrimaryComparison("base", "other"), PrimaryComparison("good", "other")]
    declared = Comparisons(runs, (), primary).declared.iloc[0]
    row = table_of(runs, primary=primary).loc["other"]
    assert (declared["verdict"], row["verdict"]) == (Verdict.WORSE, Verdict.BETTER)
    for same in ("p", "p_holm", "p_permutation", "family", "seeds_paired"):
        assert row[same] == declared[same]
    anew = table_of(runs).loc["other"]
    for name in ("n", "mean", "low", "high", "difference", "difference_low", "difference_high"):
        assert row[name] == pytest.approx(anew[name]), name
    assert row["by_seed"] == pytest.approx(anew["by_seed"])


def test_holm_runs_over_the_declared_comparisons_of_all_outcomes():
    runs = runs_of(base=BASELINE, good=ARM, other=OTHER, third=BASELINE[::-1])
    runs["valid_loss"] = -runs["score"]
    primary = [
        PrimaryComparison("good", "base"),
        PrimaryComparison("other", "base", "valid_loss"),
        PrimaryComparison("good", "other"),  # no pair of the table
    ]
    table = table_of(runs, primary=primary)
    declared = Comparisons(runs, (), primary).declared
    p = [compare(by_seed(a), by_seed(b)).p for a, b in ((ARM, BASELINE), (OTHER, BASELINE))]
    p.append(compare(by_seed(ARM), by_seed(OTHER)).p)
    assert list(declared["p_holm"]) == pytest.approx(holm(p))
    assert list(declared["difference"] < 0) == [False, True, False]
    assert table.loc["good", "p_holm"] == pytest.approx(holm(p)[0])
    assert list(table["family"]) == [EXPLORATORY, PRIMARY, EXPLORATORY, EXPLORATORY]
    explored = table.loc[["other", "third"]]
    assert list(explored["p_holm"]) == pytest.approx(holm(list(explored["p"])))


def test_a_declared_comparison_counts_its_pairs():
    runs = runs_of(base=BASELINE[:2], good=ARM)
    primary = [PrimaryComparison("good", "base"), PrimaryComparison("good", "base", paired=False)]
    table = primary_table(Comparisons(runs, (), primary).declared)
    assert list(table["n"]) == [2, len(ARM)]


def test_what_was_declared_after_the_runs_is_exploratory():
    runs = runs_of(base=BASELINE, good=ARM)
    row = table_of(runs, primary=[PrimaryComparison("good", "base", declared=AFTER)]).loc["good"]
    assert (row["family"], row["declared"]) == (EXPLORATORY, AFTER)


@pytest.mark.parametrize(
    ("margin", "scores", "expected"),
    [
        ("2 BLEU", ARM, Verdict.EQUIVALENT),
        ("0.6 BLEU", ARM, Verdict.UNDECIDED),
        ("0.6 BLEU", [score - 3 for score in ARM], Verdict.WORSE),
    ],
)
def test_a_declared_equivalence(margin, scores, expected):
    runs = runs_of(base=BASELINE, alike=scores)
    declared = PrimaryComparison("alike", "base", test="equivalence", margin=margin)
    row = table_of(runs, primary=[declared]).loc["alike"]
    comparison = compare(by_seed(scores), by_seed(BASELINE))
    assert row["verdict"] == expected and row["margin"] == declared.size
    if expected == Verdict.WORSE:  # by the p of the difference
        assert row["p"] == row["p_holm"] == comparison.p and row["test"] == "paired t"
        assert "is that of the difference" in tables.test_note(pd.DataFrame([row]))
    else:
        assert row["p"] == row["p_holm"] == pytest.approx(comparison.equivalence_p(declared.size))
        assert row["test"] == "two one-sided tests, paired t"


def test_a_difference_of_declared_equivalences_is_corrected_for_their_number():
    arms = {"other": OTHER, "good": ARM, "third": BASELINE[::-1], "fourth": ARM[::-1]}
    runs = runs_of(base=BASELINE, **arms)
    assert compare(by_seed(OTHER), by_seed(BASELINE)).p == pytest.approx(0.0143, abs=5e-5)
    for declared, expected in ((["other"], Verdict.BETTER), (arms, Verdict.UNDECIDED)):
        primary = [
            PrimaryComparison(arm, "base", test="equivalence", margin="0.1 BLEU")
            for arm in declared
        ]
        assert table_of(runs, primary=primary).loc["other", "verdict"] == expected


def test_independent_arms_are_tested_so_where_that_is_declared():
    runs = runs_of(base=BASELINE, good=ARM, late=by_seed(ARM, 11))
    declared = PrimaryComparison("good", "base", paired=False)
    assert table_of(runs, primary=[declared]).loc["good", "test"] == "Welch"
    assert table_of(runs).loc["late", "test"] == "Welch"
    with pytest.raises(CommandError, match="late and base have no seed in common, .* paired"):
        table_of(runs, primary=[PrimaryComparison("late", "base")])


def test_accuracies_are_compared_by_their_counts():
    """Four digits of a percentage break ties: 1 of 1,089 sentences is 0.0918 or 0.0919 points."""
    counts = {"base": [824, 826, 802, 816], "good": [825, 827, 801, 817]}
    scores = {arm: [round(100 * count / 1089, 4) for count in counts[arm]] for arm in counts}
    runs = runs_of("accuracy", **scores)
    assert table_of(runs).loc["good", "p_permutation"] < 10 / 16
    runs["scores.accuracy.correct"] = [count for values in counts.values() for count in values]
    runs["scores.accuracy.sentences"] = 1089
    assert table_of(runs).loc["good", "p_permutation"] == 10 / 16  # |1 + 1 - 1 + 1| or more
    runs = runs.assign(split_seed=runs["seed"])
    with pytest.raises(CommandError, match="lacks data.training_pairs, which its interval needs"):
        table_of(runs)
    runs["data.training_pairs"] = 8608
    row, values = table_of(runs).loc["good"], [100 / 1089 * d for d in (1, 1, -1, 1)]
    assert row["test"] == "paired t, overlapping splits"
    expected = compare_paired(values, 1089 / 8608).interval
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(expected)
    declared = PrimaryComparison("good", "base", paired=False)
    row = table_of(runs, primary=[declared]).loc["good"]
    assert row["test"] == "Welch, overlapping splits"
    assert "with the variance that overlapping" in tables.test_note(pd.DataFrame([row]))


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ("ter", "bleu has no outcome ter; choose from score, valid_loss, train_loss, exact"),
        ("valid_loss", "no run has the outcome valid_loss"),
    ],
)
def test_an_outcome_that_is_not_there_is_refused(outcome, message):
    with pytest.raises(CommandError, match=message):
        table_of(runs_of(base=BASELINE, good=ARM), outcome=outcome)


def test_seeds_without_an_outcome_are_left_out():
    runs = runs_of(base=BASELINE, good=[*ARM[:4], math.nan])
    row = table_of(runs).loc["good"]
    assert row["n"] == 4 and len(row["by_seed"]) == 4


def test_what_all_seeds_can_show():
    runs = runs_of(base=BASELINE, good=ARM, other=OTHER)
    table = resolution(table_of(runs), 0.2)
    samples = [[a - b for a, b in zip(arm, BASELINE)] for arm in (ARM, OTHER)]
    deviation = pooled_standard_deviation(samples)
    assert list(table["value"]) == pytest.approx(
        [
            stats.bartlett(*samples).pvalue,
            deviation,
            seeds_needed(deviation, 0.2, paired=True),
            seeds_needed(deviation, 0.2, paired=True, comparisons=2),
        ]
    )
    overlapping = resolution(table_of(runs), 0.2, test_to_train=1.0)["value"]
    assert list(overlapping[2:]) == [math.inf] * 2
    loud = runs_of(base=BASELINE, good=ARM, loud=[30.0, 90.0, 40.0, 20.0, 60.0])
    assert len(resolution(table_of(loud), 0.2)) == 1  # Bartlett's test alone
    assert resolution(table_of(runs_of(base=[1.0], good=[2.0])), 0.2).empty
