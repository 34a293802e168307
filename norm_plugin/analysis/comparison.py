"""The table of a study: each setting against the baseline, with its tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from norm_plugin.analysis.seeds import (
    LEVEL,
    Difference,
    Sample,
    describe,
    difference,
    holm,
    pooled_deviation,
    seeds_for_test,
    seeds_needed,
)
from norm_plugin.analysis.study import Setting, Study

ONE_SEED = "not tested with one seed"
BASELINE = "baseline"
SHOWN = {True: "higher than the baseline", False: "lower than the baseline"}
IF_NORMAL = {
    True: "higher, if scores are normally distributed",
    False: "lower, if scores are normally distributed",
}
"""Where only the t test shows it, which needs fewer seeds and assumes more."""
NOT_SHOWN = "no difference shown"


@dataclass(frozen=True)
class Row:
    """A setting, what its scores are, and what they show against the baseline.

    Attributes:
        difference: to the baseline; None for the baseline itself.
        corrected: p of the permutation test after Holm's correction over the rows of the table.
        t_corrected: the same of the t test.
    """

    setting: Setting
    sample: Sample
    difference: Difference | None
    corrected: float | None
    t_corrected: float | None

    @property
    def verdict(self) -> str:
        """What may be said: a difference is shown where a corrected p is below 5 %."""
        if self.difference is None:
            return BASELINE
        if self.corrected is None:
            return ONE_SEED
        if self.corrected < LEVEL:
            return SHOWN[self.difference.mean > 0]
        if self.t_corrected is not None and self.t_corrected < LEVEL:
            return IF_NORMAL[self.difference.mean > 0]
        return NOT_SHOWN


def compare_all(study: Study) -> list[Row]:
    """A row for each setting of the study, the baseline first."""
    first = Row(study.baseline, describe(study.baseline.scores), None, None, None)
    return [first, *compare_pairs([(other, study.baseline) for other in study.settings[1:]])]


def compare_pairs(pairs: Sequence[tuple[Setting, Setting]]) -> list[Row]:
    """A row for each setting with a baseline of its own; p is corrected over all of them."""
    found = [
        difference(setting.by_seed, base.by_seed, setting.split_by_seed) for setting, base in pairs
    ]
    corrected = _corrected([one.p for one in found])
    t_corrected = _corrected([one.t_p for one in found])
    return [
        Row(setting, describe(setting.scores), one, p, t_p)
        for (setting, _), one, p, t_p in zip(pairs, found, corrected, t_corrected)
    ]


def _corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of those that there are."""
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def findings(rows: Sequence[Row]) -> str:
    """What the tests of the table show, in a sentence for each verdict that was given."""
    sentences = []
    shown = (*SHOWN.values(), *IF_NORMAL.values())
    if not any(row.verdict in shown for row in rows):
        sentences.append("No setting is shown to differ from the baseline.")
    if tests_of(rows) and least_corrected(rows) >= LEVEL:
        sentences.append(
            "With so few seeds the permutation test can show no difference, however large it is."
        )
    for verdict in (*shown, NOT_SHOWN, ONE_SEED):
        names = [row.setting.name for row in rows if row.verdict == verdict]
        if names:
            sentences.append(f"{verdict.capitalize()}: {_listed(names)}.")
    return " ".join(sentences)


def tests_of(rows: Sequence[Row]) -> list[Difference]:
    """The differences that were tested."""
    return [row.difference for row in rows if row.difference and row.difference.p is not None]


def least_corrected(rows: Sequence[Row]) -> float:
    """The smallest p after the correction that the tests of a table can give; there is a test."""
    tests = tests_of(rows)
    least = min(test.least_p for test in tests if test.least_p is not None)
    return min(1.0, least * len(tests))


def remarks(rows: Sequence[Row]) -> list[str]:
    """What has to be known to read the table, a sentence or two each."""
    return [*_on_counts(rows), *_on_the_test(rows), *_on_intervals(rows), *_on_seeds_needed(rows)]


def _on_counts(rows: Sequence[Row]) -> Iterator[str]:
    counts = [row.sample.count for row in rows]
    if len(set(counts)) > 1:
        yield (
            f"The settings have {min(counts)} to {max(counts)} seeds, so some means rest on fewer "
            "runs than others."
        )
    if min(counts) == 1:
        yield "A setting with one seed has no interval, and nothing is tested against it."


def _on_the_test(rows: Sequence[Row]) -> Iterator[str]:
    """What the permutation test can show with so many seeds."""
    tests = tests_of(rows)
    if not tests:
        return
    least = min(test.least_p for test in tests if test.least_p is not None)
    corrected = least_corrected(rows)
    said = (
        f"The smallest p that the permutation test can give with so many seeds is {least:.3g}, "
        f"and {corrected:.3g} after the correction for {_comparisons(len(tests))}."
    )
    needed = seeds_for_test(len(rows) - 1, paired=bool(tests[0].by_seed))
    if corrected >= LEVEL and needed is not None:
        said += (
            f" With {_comparisons(len(rows) - 1)} it takes {needed} seeds a setting to show any "
            "difference at the 5 % level."
        )
    yield said


def _on_intervals(rows: Sequence[Row]) -> Iterator[str]:
    """Which intervals of a difference exclude 0, and what that is worth."""
    tests = tests_of(rows)
    if not tests:
        return
    names = [row.setting.name for row in rows if row.difference and _excludes_zero(row.difference)]
    yield (
        "The t test and all intervals assume normally distributed scores, which so few seeds "
        "cannot confirm; the permutation test does not. The interval of a difference is not "
        "corrected for the number of comparisons. So it shows no difference by itself. "
        f"{f'It excludes 0 for {_listed(names)}' if names else 'No interval excludes 0'}."
    )
    equal = [row.setting.name for row in rows if row.sample.deviation == 0]
    if equal:
        yield (
            f"The seeds of {_listed(equal)} have equal scores, by chance or rounding. The interval "
            "of the mean has no width then, which does not make the mean certain."
        )


def _excludes_zero(difference: Difference) -> bool:
    if difference.interval is None:
        return False
    low, high = difference.interval
    return low > 0 or high < 0


def _on_seeds_needed(rows: Sequence[Row]) -> Iterator[str]:
    """How many seeds show a difference as large as those that papers report."""
    differences = [test.by_seed for test in tests_of(rows) if test.by_seed]
    paired = bool(differences)
    samples = differences if paired else [row.setting.scores for row in rows]
    deviation = pooled_deviation(samples)
    if not deviation:
        return
    metric, comparisons = rows[0].setting.metric, len(rows) - 1
    freedom = sum(len(sample) - 1 for sample in samples)
    of = "of the differences by seed" if paired else "between seeds"
    over = "comparisons" if paired else "settings"
    said = (
        f"The standard deviation {of} is {metric.text(deviation)} {metric.title} over "
        f"all {over} ({freedom} degrees of freedom). To show a difference of "
        f"{metric.of_interest} {metric.title} in one comparison takes "
        f"{seeds_needed(deviation, metric.of_interest, paired=paired)} seeds a setting (two-sided "
        f"{'paired ' if paired else ''}t test, 5 % level, power 80 %)"
    )
    if comparisons > 1:
        needed = seeds_needed(deviation, metric.of_interest, comparisons, paired)
        said += f", and {needed} where the level is divided by {_comparisons(comparisons)}"
    yield f"{said}."


def _listed(names: Sequence[str]) -> str:
    """A name has commas of its own."""
    return "; ".join(names)


def _comparisons(count: int) -> str:
    return "1 comparison" if count == 1 else f"{count} comparisons"
