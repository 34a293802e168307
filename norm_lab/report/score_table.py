"""The table of an experiment in Markdown: ``norm-plugin score-table``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from norm_lab.config.studies import results_folder
from norm_lab.metrics import Metric, find_metric
from norm_lab.report.parsers import score_table_parser
from norm_lab.report.text import distinct, escaped, markdown, span
from norm_lab.results.table import read_results
from norm_lab.study.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
)
from norm_lab.study.comparisons import split_ratio
from norm_lab.study.significance import half_interval

NOT_COMPUTED = "not computed"


def score_table(runs: pd.DataFrame) -> str:
    """Return the scores of an experiment in Markdown, one row per norm, with notes.

    Raises:
        CommandError: the runs cannot be compared: they have different data or splits, or seeds of
            one norm have different settings.
    """
    check_same_data(runs)
    check_alike(runs, "split", ["split"])
    metric = find_metric(runs["metric"].iloc[0])
    norms = runs.groupby("norm", sort=False)
    columns = {  # old results lack some
        kind: title
        for kind, title in metric.columns.items()
        if kind == metric.headline or f"scores.{kind}.score" in runs
    }
    table = pd.DataFrame([_scores_of_norm(of_norm, metric, columns) for _, of_norm in norms])
    lines = [
        markdown(
            table.map(lambda cell: escaped(str(cell))),
            ["---", *["---:"] * (len(table.columns) - 1)],
        ),
        "",
    ]
    for kind, title in columns.items():
        if f"scores.{kind}.signature" in runs:
            signatures = distinct(runs[f"scores.{kind}.signature"])
            meaning = f"{title}: {', '.join(f'`{signature}`' for signature in signatures)}"
        else:
            labels = "; ".join(distinct(runs[f"scores.{kind}.label"]))
            meaning = labels if labels.startswith(title) else f"{title}: {labels}"
        lines.append(f"{meaning}.")
    if norms.size().max() > 1:
        lines.append(
            f"Several seeds: mean; the interval is Student's t for the mean of {metric.title}."
        )
    notes = [name for name in runs if name.startswith("scores.") and name.endswith(".note")]
    for run in runs.to_dict("records"):
        for name in notes:
            if isinstance(run[name], str):
                lines.append(f"Note on {run['norm']}, seed {run['seed']}: {run[name]}.")
    return "\n".join(lines)


def _scores_of_norm(
    runs: pd.DataFrame, metric: Metric, columns: Mapping[str, str]
) -> dict[str, str]:
    """Return a row of the table; old results may lack a kind of score or the speed."""
    check_same_sources(runs)
    check_settings_alike(runs, ("model", *TRAINING))

    def mean(column: str, unknown: str, form: Callable[[float], str] = metric.text) -> str:
        if column not in runs or runs[column].isna().any():
            return unknown
        return form(statistics.mean(runs[column].tolist()))

    seeds, single = ", ".join(map(str, runs["seed"])), len(runs) == 1
    half = math.nan if single else half_interval(runs["score"], split_ratio(runs))
    first, *others = columns.items()
    return {
        "Norm": str(runs["norm"].iloc[0]),
        "Seeds": seeds if single else f"{seeds} (n = {len(runs)})",
        "Parameters": span(runs["model.parameters"]),
        first[1]: mean("score", NOT_COMPUTED),
        "95 % interval": "one seed" if single else f"± {metric.text(half)}",
        **{title: mean(f"scores.{kind}.score", NOT_COMPUTED) for kind, title in others},
        "updates/s": mean("training.updates_per_second", "unknown", "{:.2f}".format),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``score-table``."""
    args = score_table_parser().parse_args(argv)
    print(score_table(read_results(results_folder(args.folder))))
    return 0
