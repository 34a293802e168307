"""A Markdown table of the results of an experiment.

python -m norm_plugin.experiments.tables results/multi30k
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import run_command
from norm_plugin.experiments.comparable import (
    TRAINING,
    check_alike,
    check_settings_alike,
    half_interval,
)
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


def table(results: Sequence[Result]) -> str:
    """The table of an experiment with a row for each norm, and notes on its scores.

    Raises CommandError for runs that cannot be compared: different data, different splits, or
    seeds of one norm with different settings.
    """
    check_alike(results, "data checksum", lambda run: run["data"]["checksum"])
    check_alike(results, "split", lambda run: run["split"])
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
    check_settings_alike(runs, ("model", *TRAINING))
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
