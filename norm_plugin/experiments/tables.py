"""Markdown tables of results, on screen or in the documentation.

The two commands:

    python -m norm_plugin.experiments.tables results/multi30k
    python -m norm_plugin.experiments.tables --docs . [--check]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from norm_plugin.commands.command_line import (
    CommandError,
    read_text,
    run_command,
    write_text,
)
from norm_plugin.experiments.commands import command_lines
from norm_plugin.experiments.published import published_table
from norm_plugin.experiments.readme import Generators, fill
from norm_plugin.experiments.results import Result, read_results, score_notes
from norm_plugin.experiments.speed import speed_table
from norm_plugin.listing import front_table, norms_table, options_table, sites_table

HEADER = (
    "Norm",
    "Seeds",
    "Parameters",
    "BLEU (tokenised)",
    "95 % interval",
    "exact BLEU",
    "sacrebleu",
    "updates/s",
)
NOT_COMPUTED = "not computed"
# Runs with one norm must agree in these sections of their settings to be averaged.
SAME = ("model", "task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")


def table(results: Sequence[Result]) -> str:
    """The table of an experiment, a row a norm, and under it what the scores are.

    Raises CommandError where runs cannot stand in one table: other data, another split, or
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
    labels = _distinct(result["bleu"]["tokenised"]["label"] for result in results)
    exact = _distinct(
        result["bleu"]["exact"]["label"] for result in results if "exact" in result["bleu"]
    )
    signatures = _distinct(result["bleu"]["sacrebleu"]["signature"] for result in results)
    lines += ["", f"BLEU (tokenised): {'; '.join(labels)}."]
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
    bleu = [run["bleu"]["tokenised"]["score"] for run in runs]
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
                f"{_difference(values[0], value)}; run them alike, or give one another name"
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


def fill_docs(root: Path, check: bool) -> list[Path]:
    """Write the blocks of the documentation in ``root`` anew, or only ``check``.

    Returns the files that were stale: of README.md and docs/*.md.
    """
    stale = []
    blocks = generators(root)
    for path in [root / "README.md", *sorted(root.glob("docs/*.md"))]:
        old = read_text(path)
        new = fill(old, blocks)
        if new != old:
            stale.append(path)
            if not check:
                write_text(path, new)
    return stale


def generators(root: Path) -> Generators:
    """What fills the blocks of the documentation in ``root``, by the name of the block."""
    return {
        "results/": lambda name: table(read_results(root / name)),
        "published/": lambda name: published_table(name.partition("/")[2], root / "results"),
        "speed/": lambda name: speed_table(name.partition("/")[2], root),
        "command/": lambda name: command_lines(name.partition("/")[2]),
        "front/": lambda name: front_table(name.partition("/")[2].split(",")),
        "norms": lambda _: norms_table(),
        "options": lambda _: options_table(),
        "sites": lambda _: sites_table(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.experiments.tables",
        description="Print the table of an experiment, or fill the blocks of the documentation.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", type=Path, help="results/<experiment>")
    what.add_argument(
        "--docs",
        type=Path,
        metavar="ROOT",
        help="fill the blocks of ROOT/README.md and ROOT/docs/*.md, <!-- begin:NAME --> to "
        "<!-- end:NAME -->",
    )
    parser.add_argument(
        "--check", action="store_true", help="with --docs: change nothing, exit 1 when stale"
    )
    args = parser.parse_args(argv)
    if args.docs is None:
        print(table(read_results(args.folder)))
        return 0
    stale = fill_docs(args.docs.resolve(), args.check)
    if stale and args.check:
        names = ", ".join(path.name for path in stale)
        message = f"stale: {names}; run python -m norm_plugin.experiments.tables --docs {args.docs}"
        print(f"error: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run_command(main)
