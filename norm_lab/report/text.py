"""The text of tables: numbers in the form of their column, titles, and Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.studies import LOSSES, SCORE
from norm_lab.metrics import Metric
from norm_lab.study.significance import LEVEL

NOTHING, UNKNOWN = "-", "unknown"
LOSS_DIGITS = 3


class Column(NamedTuple):
    """The form of a column of numbers; text is not changed.

    Attributes:
        form: a format, or one of UNITS, SIGNED and P; empty for unformatted numbers.
        end: the column of the upper end, if this one is the lower end of an interval.
    """

    title: str
    form: str = ""
    missing: str = NOTHING
    end: str = ""


UNITS, SIGNED, P = "in the unit of the outcome", "the same, with a sign", "p"
COLUMNS = {
    "mean": Column("mean", UNITS),
    "standard_deviation": Column("standard deviation", UNITS),
    "low": Column("95 % interval", UNITS, end="high"),
    "difference": Column("difference", SIGNED),
    "difference_low": Column("95 % interval of the difference", SIGNED, end="difference_high"),
    "text_low": Column("over seeds and text", SIGNED, end="text_high"),
    "p": Column("p", P),
    "p_permutation": Column("p (permutation)", P),
    "p_holm": Column("p (Holm)", P),
    "control_p": Column("p between two of its seeds", P),
    "seeds_paired": Column("seeds, paired", "{:,.0f}"),
    "seeds_unpaired": Column("seeds, unpaired", "{:,.0f}"),
    "lr": Column("chosen", "{:g}"),
    "tuned": Column("validation loss", UNITS),
    "next_lr": Column("next best", "{:g}"),
    "behind": Column("behind by", UNITS),
    "spread": Column("standard deviation between seeds", UNITS),
    "sensitivity": Column("sensitivity", UNITS),
    "sensitivity_low": Column("95 % interval", UNITS, end="sensitivity_high"),
    "from_lr": Column("from", "{:g}"),
    "to_lr": Column("to", "{:g}"),
    "score": Column("score", UNITS),
    "reaching": Column("seeds that reach it"),
    "updates": Column("updates", "{:,.0f}", "not reached"),
    "minutes": Column("minutes", "{:.1f}", UNKNOWN),
    "least": Column("least loss", "{:.3f}", UNKNOWN),
    "norm_parameters": Column("of norms"),
    "updates_per_second": Column("updates/s", "{:.2f}", UNKNOWN),
    "peak_memory": Column("peak host memory, MiB", "{:,.0f}", UNKNOWN),
    "value": Column("value", "{:.3g}"),
    "published": Column("published", SIGNED),
    "published_low": Column("its 95 % interval", SIGNED, end="published_high"),
    "own": Column("yours", SIGNED),
    "own_low": Column("95 % interval of yours", SIGNED, end="own_high"),
    "n_published": Column("n, published"),
    "n_own": Column("n, yours"),
    "agreement": Column("verdict"),
    "stage": Column("in"),
    "progress": Column("it had reached"),
}
"""The form of each column; other columns keep their name and values."""
ENDS = {column.end for column in COLUMNS.values()}
LEFT = {
    "arm",
    "id",
    "baseline",
    "verdict",
    "outcome",
    "quantity",
    "note",
    "state",
    "reason",
    "commit",
}
"""The titles of columns of text; the others are aligned to the right."""


def formatted(
    table: pd.DataFrame, metric: Metric, outcome: str = SCORE, signed: bool = True
) -> pd.DataFrame:
    """Return a table as text, with the titles of its columns.

    Args:
        outcome: the outcome of all rows, for a table without a column ``outcome``.
        signed: whether the columns of the form SIGNED are differences, not means.
    """
    outcomes = table.get("outcome", pd.Series(outcome, table.index))
    shown: dict[str, list[str]] = {}
    for name in table.columns.difference(ENDS, sort=False):
        column = COLUMNS.get(name, Column(str(name).replace("_", " ")))
        if name == "outcome":
            shown[name] = [outcome_title(each, metric) for each in outcomes]
        else:
            ends = [table[end] for end in (name, column.end) if end]
            shown[column.title] = [
                _joined([_cell(value, column, of_row, metric, signed) for value in values])
                for of_row, *values in zip(outcomes, *ends)
            ]
    return pd.DataFrame(shown)


def _joined(ends: Sequence[str]) -> str:
    return NOTHING if NOTHING in ends else " to ".join(ends)


def _cell(value: Any, column: Column, outcome: str, metric: Metric, signed: bool) -> str:
    """Return the text of a value; an integer has no decimal point, even if pandas made it float."""
    if isinstance(value, str):
        return str(value) or column.missing
    if pd.isna(value):
        return column.missing
    if column.form == P:
        return p_text(value)
    if column.form in (UNITS, SIGNED):
        sign = "+" if signed and column.form == SIGNED else ""
        if outcome in (*LOSSES, *metric.losses):
            return f"{value:{sign}.{LOSS_DIGITS}f}"
        return metric.text(value, sign)
    if column.form:  # among such numbers only a number of seeds can be infinite
        return "none is enough" if math.isinf(value) else column.form.format(value)
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def p_text(value: float | None) -> str:
    """Return p with three decimals, or more if rounding would hide on which side of 5 % it is."""
    if value is None or pd.isna(value):
        return NOTHING
    if value < 0.0005:
        return "<0.001"
    text = f"{value:.3f}"
    return f"{value:.6f}".rstrip("0") if float(text) == LEVEL else text


def outcome_title(outcome: str, metric: Metric) -> str:
    """Return the title of an outcome: that of the metric for ``score``, a loss with its unit."""
    titles = {
        "score": metric.title,
        "valid_loss": f"least validation loss, {metric.loss_unit}",
        "train_loss": f"final training loss, {metric.loss_unit}",
    }
    return {**metric.columns, **metric.losses, **titles}.get(outcome, outcome)


MARKUP = re.compile(r"[\\`*\[\]]|\b_\B|\B_\b|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
"""What Markdown or HTML in it would take for markup; an underscore in a word is none."""


def escaped(text: str) -> str:
    """Return text for Markdown, in one line and without markup."""
    entities = {"<": "&lt;", "&": "&amp;"}
    line = re.sub(r"[\r\n]+", " ", text)
    return MARKUP.sub(lambda found: entities.get(found[0], f"\\{found[0]}"), line)


def markdown(table: pd.DataFrame, align: Sequence[str] = ()) -> str:
    """Return a table in Markdown.

    Args:
        align: ``---`` or ``---:`` for each column (default: left).
    """
    rows = [list(table.columns), *table.itertuples(index=False)]
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, list(align) or ["---"] * len(table.columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(counts: Iterable[int]) -> str:
    """Return ``1,000``, or ``998 to 1,000`` if counts differ, as for random splits of a corpus."""
    ordered = sorted(counts)
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ordered[0], ordered[-1])))


def distinct(values: Iterable[object]) -> list[str]:
    """Return the distinct values as sorted text, without missing ones."""
    return sorted({str(value) for value in values if not pd.isna(value)})
