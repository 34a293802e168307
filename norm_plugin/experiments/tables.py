"""Tables in Markdown, and that of the scores of an experiment."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from norm_plugin.experiments.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
    half_interval,
    span,
)
from norm_plugin.experiments.metrics import Metric, find_metric
from norm_plugin.experiments.results import read_results

NOT_COMPUTED = "not computed"


def markdown(table: pd.DataFrame, align: Sequence[str] = ()) -> str:
    """A table in Markdown, with its cells as text and a ``|`` within them escaped.

    Args:
        align: ``---`` or ``---:`` for each column; left without it.
    """
    rows = [list(table.columns), *table.itertuples(index=False)]
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, list(align) or ["---"] * len(table.columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def score_table(runs: pd.DataFrame) -> str:
    """The scores of an experiment in Markdown, a row a norm, and notes on them.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    check_same_data(runs)
    check_alike(runs, "split", ["split"])
    metric = find_metric(runs["metric"].iloc[0])
    norms = runs.groupby("norm", sort=False)
    table = pd.DataFrame([_row(str(norm), of_norm, metric) for norm, of_norm in norms])
    lines = [markdown(table, ["---", *["---:"] * (len(table.columns) - 1)]), ""]
    lines += [_meaning(runs, kind, title) for kind, title in metric.columns.items()]
    if norms.size().max() > 1:
        lines += [
            f"Several seeds: mean; the interval is Student's t for the mean of {metric.title}."
        ]
    notes = [name for name in runs if name.startswith("scores.") and name.endswith(".note")]
    for run in runs.to_dict("records"):
        lines += [
            f"Note on {run['norm']}, seed {run['seed']}: {run[name]}."
            for name in notes
            if isinstance(run[name], str)
        ]
    return "\n".join(lines)


def _meaning(runs: pd.DataFrame, kind: str, title: str) -> str:
    """What a column of scores is, from the labels or signatures of the scores in it."""
    if f"scores.{kind}.score" not in runs:
        return f"{title}: {NOT_COMPUTED} when these runs were scored."
    if f"scores.{kind}.signature" in runs:
        signatures = distinct(runs[f"scores.{kind}.signature"])
        return f"{title}: {', '.join(f'`{signature}`' for signature in signatures)}."
    labels = "; ".join(distinct(runs[f"scores.{kind}.label"]))
    return f"{labels}." if labels.startswith(title) else f"{title}: {labels}."


def _row(norm: str, runs: pd.DataFrame, metric: Metric) -> dict[str, str]:
    check_same_sources(runs)
    check_settings_alike(runs, ("model", *TRAINING))
    values = runs["score"].tolist()
    seeds = ", ".join(map(str, runs["seed"]))
    first, *others = metric.columns.items()
    single = len(runs) == 1
    speeds = runs.get("training.updates_per_second")
    unknown = speeds is None or speeds.isna().any()
    return {
        "Norm": norm,
        "Seeds": seeds if single else f"{seeds} (n = {len(runs)})",
        "Parameters": span(runs["model.parameters"]),
        first[1]: metric.text(statistics.mean(values)),
        "95 % interval": "one seed" if single else f"± {metric.text(half_interval(values))}",
        **{title: _mean(runs, f"scores.{kind}.score", metric) for kind, title in others},
        "updates/s": "unknown" if unknown else f"{statistics.mean(speeds.tolist()):.2f}",
    }


def _mean(runs: pd.DataFrame, column: str, metric: Metric) -> str:
    """The mean of a further kind of score; results from before there was one do not hold it."""
    if column not in runs or runs[column].isna().any():
        return NOT_COMPUTED
    return metric.text(statistics.mean(runs[column].tolist()))


def distinct(values: Iterable[object]) -> list[str]:
    """The distinct values as text, sorted, without missing ones."""
    return sorted({str(value) for value in pd.Series(list(values), dtype=object).dropna()})


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin table",
        description="Print the table of an experiment in Markdown.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results/<experiment>")
    args = parser.parse_args(argv)
    print(score_table(read_results(args.folder)))
    return 0
