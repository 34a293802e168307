"""A table and a figure of the warm-up study: configs/study/warmup.yaml.

    python -m norm_plugin.analysis.warmup --results results/warmup

It takes the words that the sweep was started with. Beside the results of the runs it writes
``warmup.md`` with the table, and ``warmup.svg`` with the validation loss of every run; its data are
in ``warmup.csv``. A run that diverged has its losses up to then. docs/warmup.md explains the
schedules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import COLORS, Figure, draw
from norm_plugin.commands.command_line import (
    CommandError,
    hide_warnings,
    read_json,
    read_text,
    run_command,
    write_text,
)
from norm_plugin.experiments import options
from norm_plugin.experiments.failures import record_file
from norm_plugin.experiments.grid import read_grid
from norm_plugin.experiments.naming import flag_settings
from norm_plugin.experiments.plan import Plan
from norm_plugin.experiments.provenance import short_commit
from norm_plugin.experiments.results import headline, metric_of, read_result

STUDY = "warmup"
HEADER = ("placement", "warm-up", "learning rate", "BLEU", "best loss", "last loss", "state")
MISSING = "not run"
DASHES = {"pre": "-", "post": "--"}


@dataclass(frozen=True)
class Run:
    """One run of the study.

    Attributes:
        warmup: its schedule in words, as in docs/warmup.md.
        lr: the highest learning rate.
        state: finished, diverged, failed, or not run.
        bleu: None where there is no score.
        losses: (updates, validation loss) of each validation with a finite loss.
    """

    placement: str
    warmup: str
    lr: float
    state: str
    bleu: float | None
    losses: list[tuple[int, float]]
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the curve."""
        return f"{self.placement}, {self.lr:g}, {self.warmup}"


def schedule(flags: dict[str, Any]) -> str:
    """The warm-up in words, from the flags of ``fairseq-train``."""
    if flags["lr-scheduler"] == "fixed":
        return "none, fixed rate"
    updates = int(flags["warmup-updates"])
    if float(flags["warmup-init-lr"]) == float(flags["lr"]):
        return f"0, constant for {updates}"
    return str(updates)


def read_run(plan: Plan) -> Run:
    """A run of the study, from its result or the record of its failure."""
    flags = flag_settings(plan.training)
    what = (flags["norm-placement"], schedule(flags), float(flags["lr"]))
    failed = record_file(plan)
    path = plan.result if plan.result.exists() else failed
    if not path.exists():
        return Run(*what, MISSING, None, [], {})
    found = read_json(path) if path == failed else read_result(path)
    points = (found["curves"] or {}).get("valid", [])
    return Run(
        *what,
        found["state"] if path == failed else "finished",
        None if path == failed else headline(found),
        [(point["updates"], point["loss"]) for point in points if "loss" in point],
        found,
    )


def table(runs: Sequence[Run]) -> str:
    """A row for each run, in Markdown."""
    rows = [HEADER, ("---", *["---:"] * (len(HEADER) - 2), "---"), *map(_row, runs)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(run: Run) -> tuple[str, ...]:
    losses = [loss for _, loss in run.losses]
    return (
        run.placement,
        run.warmup,
        f"{run.lr:g}",
        "-" if run.bleu is None else f"{run.bleu:.2f}",
        f"{min(losses):.2f}" if losses else "-",
        f"{losses[-1]:.2f}" if losses else "-",
        run.state,
    )


def figure(runs: Sequence[Run]) -> Figure:
    """The validation loss of every run that has begun; that of a failed one ends in a cross."""
    drawn = [run for run in runs if run.losses]
    schedules = list(dict.fromkeys((run.lr, run.warmup) for run in drawn))

    def plot(axes: Any) -> None:
        for run in drawn:
            color = COLORS[schedules.index((run.lr, run.warmup)) % len(COLORS)]
            dash = DASHES[run.placement]
            axes.plot(*zip(*run.losses), dash, color=color, linewidth=1.4, label=run.name)
            if run.state != "finished":
                axes.plot(*run.losses[-1], "x", color=color)
        axes.set_xlabel("updates")
        axes.set_ylabel("validation loss, bits a token")
        axes.legend(fontsize=8, ncols=2)

    return Figure(
        STUDY,
        "Validation loss of every run: placement, learning rate, warm-up.",
        draw(plot, height=5, name=STUDY),
        pd.DataFrame(
            [(run.placement, run.warmup, run.lr, *point) for run in drawn for point in run.losses],
            columns=["placement", "warmup", "lr", "updates", "loss"],
        ),
    )


def provenance(runs: Sequence[Run]) -> str:
    """Seeds, data, commits and versions of the runs that finished."""
    finished = [run.facts for run in runs if run.state == "finished"]
    if not finished:
        return ""

    def distinct(values: Sequence[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    commits = distinct([short_commit(one["git"] or {}) for one in finished])
    checksums = distinct([one["data"]["checksum"][:16] for one in finished])
    versions = distinct(
        [
            ", ".join(f"{name} {value}" for name, value in one["versions"].items())
            for one in finished
        ]
    )
    seeds = distinct([str(one["seed"]) for one in finished])
    label = distinct([one["scores"][metric_of(one).headline]["label"] for one in finished])
    many = f"Seeds {seeds}"
    if ";" not in seeds:
        many = f"One seed, {seeds}, so a difference between two rows can be noise"
    return (
        f"{many}. BLEU is {label}. The loss is that of the criterion, on the validation "
        f"set. Data checksum {checksums}; commit {commits}; {versions}."
    )


def write_page(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the table, the figure and its data into ``folder``; the paths written."""
    drawn = figure(runs)
    texts = {
        "warmup.md": "\n\n".join(filter(None, (table(runs), provenance(runs)))) + "\n",
        "warmup.svg": drawn.standalone,
        "warmup.csv": drawn.csv,
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def published_table(folder: Path) -> str:
    """Table and figure in ``folder``, results/warmup/multi30k_cpu, for the documentation."""
    page = folder / "warmup.md"
    if not page.exists():
        return "These runs are not finished yet."
    place = "/".join(folder.parts[-3:])
    return f"{read_text(page)}\n![validation losses](../{place}/warmup.svg)"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, which is that of the sweep."""
    hide_warnings()
    words = list(sys.argv[1:] if argv is None else argv)
    args = options.parse(options.sweep_parser("warmup"), [STUDY, *words])
    if args.status or args.dry_run:
        return 0
    plans = [cell.plan for cell in read_grid(args)[0]]
    runs = [read_run(plan) for plan in plans]
    if not any(run.losses for run in runs):
        raise CommandError(
            f"no run in {plans[0].result.parent} has been validated yet: start the sweep, or give "
            "the --work or --results that it was given"
        )
    for path in write_page(runs, plans[0].result.parent):
        print(path)
    return 0


if __name__ == "__main__":
    run_command(main)
