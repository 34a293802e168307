"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; the first row is its head. A ``|`` within a cell is escaped."""
    head, *body = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
