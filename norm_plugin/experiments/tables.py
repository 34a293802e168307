"""A Markdown table of the results of an experiment.

norm-plugin table results/multi30k
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from norm_plugin.commands.command_line import run_command
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_alike,
    check_same_data,
    check_same_sources,
    check_settings_alike,
    half_interval,
    span,
)
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.results import (
    Result,
    headline,
    metric_of,
    read_result_files,
    score_notes,
)

NOT_COMPUTED = "not computed"


def table(results: Sequence[Result]) -> str:
    """The table of an experiment with a row for each norm, and notes on its scores.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    check_same_data(results)
    check_alike(results, "split", lambda run: run["split"])
    norms: dict[str, list[Result]] = {}
    for result in results:
        norms.setdefault(result["norm"], []).append(result)
    rows = [_row(norm, runs) for norm, runs in norms.items()]
    metric = metric_of(results[0])
    header = _header(metric)
    lines = [_line(header), _line(["---", *["---:"] * (len(header) - 1)])]
    lines += [_line(row) for row in rows]
    lines += ["", *(_meaning(results, kind, title) for kind, title in metric.columns.items())]
    if any(len(runs) > 1 for runs in norms.values()):
        lines += [
            f"Several seeds: mean; the interval is Student's t for the mean of {metric.title}."
        ]
    for result in results:
        notes = score_notes(result)
        lines += [f"Note on {result['norm']}, seed {result['seed']}: {note}." for note in notes]
    return "\n".join(lines)


def _header(metric: Metric) -> list[str]:
    first, *others = metric.columns.values()
    return ["Norm", "Seeds", "Parameters", first, "95 % interval", *others, "updates/s"]


def _meaning(results: Sequence[Result], kind: str, title: str) -> str:
    """What a column of scores is, from the labels or signatures of the scores in it."""
    scores = [result["scores"][kind] for result in results if kind in result["scores"]]
    if not scores:
        return f"{title}: {NOT_COMPUTED} when these runs were scored."
    if "signature" in scores[0]:
        signatures = _distinct(score["signature"] for score in scores)
        return f"{title}: {', '.join(f'`{signature}`' for signature in signatures)}."
    labels = "; ".join(_distinct(score["label"] for score in scores))
    return f"{labels}." if labels.startswith(title) else f"{title}: {labels}."


def _row(norm: str, runs: Sequence[Result]) -> list[str]:
    check_same_sources(runs)
    check_settings_alike(runs, ("model", *TRAINING))
    metric = metric_of(runs[0])
    values = [headline(run) for run in runs]
    speeds = [run["training"]["updates_per_second"] for run in runs]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return [
        norm,
        seeds if len(runs) == 1 else f"{seeds} (n = {len(runs)})",
        span([run["model"]["parameters"] for run in runs]),
        metric.text(statistics.mean(values)),
        "one seed" if len(runs) == 1 else f"± {metric.text(half_interval(values))}",
        *(_mean(runs, kind) for kind in metric.columns if kind != metric.headline),
        "unknown" if None in speeds else f"{statistics.mean(speeds):.2f}",
    ]


def _mean(runs: Sequence[Result], kind: str) -> str:
    """The mean of a further kind of score; results from before there was one do not hold it."""
    found = [run["scores"][kind]["score"] for run in runs if kind in run["scores"]]
    if len(found) < len(runs):
        return NOT_COMPUTED
    return metric_of(runs[0]).text(statistics.mean(found))


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin table",
        description="Print the table of an experiment in Markdown.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results/<experiment>")
    args = parser.parse_args(argv)
    print(table(read_result_files(args.folder)))
    return 0


if __name__ == "__main__":
    run_command(main)
