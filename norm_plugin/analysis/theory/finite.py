"""Measurements that are NaN or infinite: nothing is computed from a case that has one.

To leave out the single rows would fit a line to the layers that happen to be finite, and the
largest of several numbers hides a NaN among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from norm_plugin.analysis.theory.claim import Row
from norm_plugin.analysis.theory.rows import group

CASE = ("placement", "model", "stack", "place", "x", "norm", "tokens", "updates", "checkpoint")
"""The columns that tell the cases of a claim apart; each claim has some of them."""


def is_finite(row: Row) -> bool:
    """Whether no number of a measurement is NaN or infinite."""
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def finite_cases(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The rows of the cases that are finite throughout, and a sentence on each other case."""
    columns = [column for column in CASE if column in rows[0]]
    left_out = {
        case: f"{sum(not is_finite(row) for row in some)} of {len(some)}"
        for case, some in group(rows, *columns).items()
        if not all(map(is_finite, some))
    }
    kept = [row for row in rows if tuple(row[column] for column in columns) not in left_out]
    sentences = []
    for case, count in left_out.items():
        known = (f"{name} {value}" for name, value in zip(columns, case) if value is not None)
        sentences.append(
            f"{', '.join(known)}: {count} measurements are not finite, so nothing is computed from "
            "them."
        )
    return kept, sentences
