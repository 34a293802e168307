"""A Markdown table of the results of an experiment.

python -m norm_plugin.experiments.tables results/multi30k
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from norm_plugin.commands.command_line import CommandError, run_command
from norm_plugin.experiments.results import Result, read_results, score_notes

HEADER = (
    "Norm",
    "Seeds",
    "Parameters",
    "BLEU (tokenized)",
    "95 % interval",
    "exact BLEU",
    "sacrebleu",
    "updates/s",
)
NOT_COMPUTED = "not computed"
# Runs with one norm must agree in these sections of their settings to be averaged.
SAME = ("model", "task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")


def table(results: Sequence[Result]) -> str:
    """The table of an experiment with a row for each norm, and notes on its scores.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    _check_same(results, "data checksum", [result["data"]["checksum"] for result in results])
    _check_same(results, "split", [result["split"] for result in results])
    norms: dict[str, list[Result]] = {}
    for result in results:
        norms.setdefault(result["norm"], []).append(result)
    rows = [_row(norm, runs) for norm, runs in norms.items()]
    lines = [_line(HEADER), _line(["---", *["---:"] * (len(HEADER) - 1)])]
    lines += [_line(row) for row in rows]
    labels = _distinct(result["bleu"]["tokenized"]["label"] for result in results)
    exact = _distinct(
        result["bleu"]["exact"]["label"] for result in results if "exact" in result["bleu"]
    )
    signatures = _distinct(result["bleu"]["sacrebleu"]["signature"] for result in results)
    lines += ["", f"BLEU (tokenized): {'; '.join(labels)}."]
    lines += [f"exact BLEU: {'; '.join(exact) or NOT_COMPUTED + ' when these runs were scored'}."]
    lines += [f"sacrebleu: {', '.join(f'`{signature}`' for signature in signatures)}."]
    if any(len(runs) > 1 for runs in norms.values()):
        lines += ["Several seeds: mean; the interval is Student's t for the mean of BLEU."]
    for result in results:
        notes = score_notes(result)
        lines += [f"Note on {result['norm']}, seed {result['seed']}: {note}." for note in notes]
    return "\n".join(lines)


def _row(norm: str, runs: Sequence[Result]) -> list[str]:
    for section in SAME:
        _check_same(runs, f"settings of {section}", [run["settings"][section] for run in runs])
    bleu = [run["bleu"]["tokenized"]["score"] for run in runs]
    sacrebleu = [run["bleu"]["sacrebleu"]["score"] for run in runs]
    speeds = [run["training"]["updates_per_second"] for run in runs]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    return [
        norm,
        seeds if len(runs) == 1 else f"{seeds} (n = {len(runs)})",
        f"{runs[0]['model']['parameters']:,}",
        f"{statistics.mean(bleu):.2f}",
        "one seed" if len(runs) == 1 else f"± {half_interval(bleu):.2f}",
        _exact([run["bleu"].get("exact") for run in runs]),
        f"{statistics.mean(sacrebleu):.2f}",
        "unknown" if None in speeds else f"{statistics.mean(speeds):.2f}",
    ]


def _exact(scores: Sequence[dict[str, Any] | None]) -> str:
    """The mean of the exact scores; results written before there was one do not hold it."""
    found = [score["score"] for score in scores if score is not None]
    return f"{statistics.mean(found):.2f}" if len(found) == len(scores) else NOT_COMPUTED


def half_interval(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half the width of the confidence interval of the mean, by Student's t; two values or more."""
    count = len(values)
    quantile = stats.t.ppf((1 + confidence) / 2, count - 1)
    return float(quantile * statistics.stdev(values) / math.sqrt(count))


def _check_same(results: Sequence[Result], what: str, values: Sequence[Any]) -> None:
    for other, value in zip(results[1:], values[1:]):
        if value != values[0]:
            names = [f"{result['norm']} seed {result['seed']}" for result in (results[0], other)]
            raise CommandError(
                f"{names[0]} and {names[1]} of {other['experiment']} differ in {what}"
                f"{_difference(values[0], value)}; run them with the same settings, or rename "
                "one experiment"
            )


def _difference(first: Any, second: Any) -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        missing = object()
        keys = [k for k in {**first, **second} if first.get(k, missing) != second.get(k, missing)]
        first, second = ({key: value.get(key) for key in keys} for value in (first, second))
    return f" ({first} and {second})"


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.experiments.tables",
        description="Print the table of an experiment in Markdown.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="results/<experiment>")
    args = parser.parse_args(argv)
    print(table(read_results(args.folder)))
    return 0


if __name__ == "__main__":
    run_command(main)
