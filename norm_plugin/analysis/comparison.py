"""The table of a study: each setting against the baseline, with its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from norm_plugin.analysis.seeds import (
    CONFIDENCE,
    Difference,
    Sample,
    compare,
    describe,
    holm,
    pooled_deviation,
    seeds_needed,
)
from norm_plugin.analysis.study import Setting, Study

LEVEL = 1 - CONFIDENCE
ONE_SEED = "not tested with one seed"
BASELINE = "baseline"
SHOWN = {True: "higher than the baseline", False: "lower than the baseline"}
NOT_SHOWN = "no difference shown"


@dataclass(frozen=True)
class Row:
    """A setting, what its scores are, and what they show against the baseline.

    Attributes:
        difference: to the baseline; None for the baseline itself.
        corrected: p of the permutation test after Holm's correction over the rows of the table.
    """

    setting: Setting
    sample: Sample
    difference: Difference | None
    corrected: float | None

    @property
    def verdict(self) -> str:
        """What may be said: a difference is shown where the corrected p is below 5 %."""
        if self.difference is None:
            return BASELINE
        if self.corrected is None:
            return ONE_SEED
        if self.corrected >= LEVEL:
            return NOT_SHOWN
        return SHOWN[self.difference.mean > 0]


def compare_all(study: Study) -> list[Row]:
    """A row for each setting of the study, the baseline first."""
    base = study.baseline.scores
    others = study.settings[1:]
    differences = [compare(setting.scores, base) for setting in others]
    tested = [difference.p for difference in differences if difference.p is not None]
    corrected = iter(holm(tested))
    rows = [Row(study.baseline, describe(base), None, None)]
    for setting, difference in zip(others, differences):
        p = None if difference.p is None else next(corrected)
        rows.append(Row(setting, describe(setting.scores), difference, p))
    return rows


def findings(rows: Sequence[Row]) -> str:
    """What the tests of the table show, in a sentence for each verdict that was given."""
    sentences = []
    for verdict in dict.fromkeys((*SHOWN.values(), NOT_SHOWN, ONE_SEED)):
        names = [row.setting.name for row in rows if row.verdict == verdict]
        if names:
            sentences.append(f"{verdict.capitalize()}: {'; '.join(names)}.")
    if not any(row.verdict in SHOWN.values() for row in rows):
        sentences.insert(0, "No setting is shown to differ from the baseline.")
    return " ".join(sentences)


def _comparisons(count: int) -> str:
    return "1 comparison" if count == 1 else f"{count} comparisons"


def remarks(rows: Sequence[Row]) -> list[str]:
    """What has to be known to read the table, a sentence or two each."""
    found = []
    tests = [row.difference for row in rows if row.difference and row.difference.p is not None]
    counts = [row.sample.count for row in rows]
    if len(set(counts)) > 1:
        found.append(
            f"The settings have {min(counts)} to {max(counts)} seeds, so some means rest on fewer "
            "runs than others."
        )
    if min(counts) == 1:
        found.append("A setting with one seed has no interval, and nothing is tested against it.")
    if tests:
        least = min(test.least_p for test in tests if test.least_p is not None)
        bound = min(1.0, least * len(tests))
        found.append(
            f"The smallest p that the permutation test can give with so many seeds is {least:.3g}, "
            f"and {bound:.3g} after the correction for {_comparisons(len(tests))}."
        )
        if bound >= LEVEL:
            found.append(
                "These seeds are too few for this test to show any difference at the 5 % level, "
                "however large; read the intervals, which rest on normally distributed scores."
            )
    deviation = pooled_deviation([row.setting.scores for row in rows])
    if deviation:
        metric = rows[0].setting.metric
        needed = seeds_needed(deviation, metric.of_interest)
        freedom = sum(count - 1 for count in counts)
        found.append(
            f"The standard deviation between seeds is {metric.text(deviation)} {metric.title} over "
            f"all settings ({freedom} degrees of freedom). To show a difference of "
            f"{metric.of_interest} {metric.title} takes "
            f"{needed} seeds a setting (two-sided t test, 5 % level, power 80 %)."
        )
    return found
