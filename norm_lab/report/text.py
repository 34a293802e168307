"""Text of tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd


def markdown(table: pd.DataFrame, align: Sequence[str] = ()) -> str:
    """A table in Markdown.

    Args:
        align: ``---`` or ``---:`` for each column (default: left).
    """
    rows = [list(table.columns), *table.itertuples(index=False)]
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, list(align) or ["---"] * len(table.columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(counts: Iterable[int]) -> str:
    """``1,000``, or ``998 to 1,000`` if counts differ, as on random splits of a corpus."""
    ordered = sorted(counts)
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ordered[0], ordered[-1])))


def distinct(values: Iterable[object]) -> list[str]:
    """The distinct values as sorted text, without missing ones."""
    return sorted({str(value) for value in values if not pd.isna(value)})
