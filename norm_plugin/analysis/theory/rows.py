"""Measurements as rows: grouped, and as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from norm_plugin.analysis.theory.claim import Row


def group(rows: Sequence[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values in ``columns``, groups and rows in their order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def to_csv(rows: Sequence[Row]) -> str:
    """A CSV text with the columns of the first row; numbers have six digits, None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = list(rows[0])
    writer.writerow(columns)
    writer.writerows([[_cell(row[column]) for column in columns] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def from_csv(text: str) -> list[Row]:
    """The rows of :func:`to_csv`: integers, floats, None and words."""
    return [
        {column: _value(cell) for column, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


def _value(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None
