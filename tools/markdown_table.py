"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from norm_plugin.experiments import tables


def markdown(rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; the first row is its head. A ``|`` within a cell is escaped."""
    head, *body = rows
    return tables.markdown(pd.DataFrame(body, columns=list(head)))
