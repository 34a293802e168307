"""The table and figure of the warm-up study, configs/study/warmup.yaml.

    norm-plugin warmup --results results/warmup

The arguments are those of the sweep. It writes ``warmup.md`` with the table, ``warmup.svg`` with
the validation losses of all runs, and ``warmup.csv`` with their data, beside the results of the
runs. The losses of a diverged run end where it diverged. docs/warmup.md explains the schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import COLORS, Figure, draw
from norm_plugin.analysis.report import figure_files, write_files
from norm_plugin.analysis.tables import commits, distinct, markdown
from norm_plugin.commands.command_line import CommandError, read_text
from norm_plugin.experiments import options
from norm_plugin.experiments.metrics import find_metric
from norm_plugin.experiments.results import RUN_KEY, read_curves, read_failures, read_results
from norm_plugin.experiments.spec import RunSpec, flag_settings
from norm_plugin.experiments.sweep import read_specs

STUDY = "warmup"
FINISHED, NOT_RUN = "finished", "not run"
DASHES = {"pre": "-", "post": "--"}


def schedule(flags: dict[str, Any]) -> str:
    """The name of the warm-up in docs/warmup.md, from the flags of ``fairseq-train``."""
    if flags["lr-scheduler"] == "fixed":
        return "none, fixed rate"
    updates = int(flags["warmup-updates"])
    if float(flags["warmup-init-lr"]) == float(flags["lr"]):
        return f"0, constant for {updates}"
    return str(updates)


def planned(specs: Sequence[RunSpec]) -> pd.DataFrame:
    """The runs of the study in order: the keys of their results and the compared settings."""
    flags = [flag_settings(spec.training) for spec in specs]
    return pd.DataFrame(
        {
            "experiment": [spec.experiment for spec in specs],
            "norm": [f"{spec.label}{spec.variant}" for spec in specs],
            "seed": [spec.seed for spec in specs],
            "placement": [of_run["norm-placement"] for of_run in flags],
            "warm-up": list(map(schedule, flags)),
            "learning rate": [float(of_run["lr"]) for of_run in flags],
        }
    )


def read_runs(plan: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The planned runs with their outcomes.

    Returns:
        the columns of ``plan`` and those of :func:`read_results`, with ``state`` (finished,
        diverged, failed or not run) and, of its validation losses, ``best``, ``last`` and
        ``losses``, a list of (updates, loss).

    Raises:
        CommandError: no run has been validated, or none has finished.
    """
    curves = read_curves(folder)
    valid = curves[(curves["subset"] == "valid") & curves["loss"].notna()]
    if valid.empty:
        raise CommandError(
            f"no run in {folder} has been validated yet: start the sweep, or give the --work or "
            "--results that it was given"
        )
    results = read_results(folder).drop(columns="placement")
    failures = read_failures(folder)[[*RUN_KEY, "state"]]
    runs = plan.merge(results, how="left", on=RUN_KEY).merge(failures, how="left", on=RUN_KEY)
    runs["state"] = runs["state"].where(runs["score"].isna(), FINISHED).fillna(NOT_RUN)
    losses = valid.groupby(RUN_KEY)["loss"].agg(best="min", last="last")
    points = valid.groupby(RUN_KEY)[["updates", "loss"]].apply(
        lambda some: some.to_numpy().tolist()
    )
    return runs.merge(losses.assign(losses=points), how="left", left_on=RUN_KEY, right_index=True)


def table(runs: pd.DataFrame) -> str:
    """A table with one row per run, in Markdown."""
    shown = runs[["placement", "warm-up"]].copy()
    shown["learning rate"] = runs["learning rate"].map("{:g}".format)
    for name, column in (("BLEU", "score"), ("best loss", "best"), ("last loss", "last")):
        shown[name] = runs[column].map("{:.2f}".format, "ignore").fillna("-")
    shown["state"] = runs["state"]
    return markdown(shown, ["---", *["---:"] * (len(shown.columns) - 2), "---"])


def figure(runs: pd.DataFrame) -> Figure:
    """The validation loss of every run that was started; a cross marks the end of a failed one."""
    drawn = runs[runs["losses"].notna()]
    schedules = list(dict.fromkeys(zip(drawn["learning rate"], drawn["warm-up"])))

    def plot(axes: Any) -> None:
        for run in drawn.to_dict("records"):
            color = COLORS[schedules.index((run["learning rate"], run["warm-up"])) % len(COLORS)]
            label = f"{run['placement']}, {run['learning rate']:g}, {run['warm-up']}"
            look = {"color": color, "linewidth": 1.4, "label": label}
            axes.plot(*zip(*run["losses"]), DASHES[run["placement"]], **look)
            if run["state"] != FINISHED:
                axes.plot(*run["losses"][-1], "x", color=color)
        axes.set(xlabel="updates", ylabel="validation loss, bits a token")
        axes.legend(fontsize=8, ncols=2)

    points = drawn.explode("losses", ignore_index=True)
    columns = {"placement": "placement", "warm-up": "warmup", "learning rate": "lr"}
    data = points[list(columns)].rename(columns=columns)
    data[["updates", "loss"]] = points["losses"].tolist()
    return Figure(
        STUDY,
        "Validation loss of every run: placement, learning rate, warm-up.",
        draw(plot, height=5, name=STUDY),
        data.astype({"updates": int}),
    )


def provenance(runs: pd.DataFrame) -> str:
    """The seeds, data, commits and versions of the finished runs."""
    finished = runs[runs["state"] == FINISHED]
    metric = find_metric(finished["metric"].iloc[0])
    seeds = distinct(finished["seed"])
    many = f"Seeds {'; '.join(seeds)}"
    if len(seeds) == 1:
        many = f"One seed, {seeds[0]}, so a difference between two rows can be noise"
    versions = finished[[name for name in finished if name.startswith("versions.")]]
    numbers = distinct(
        ", ".join(f"{name.removeprefix('versions.')} {value}" for name, value in row.items())
        for row in versions.to_dict("records")
    )
    return (
        f"{many}. BLEU is {'; '.join(distinct(finished[f'scores.{metric.headline}.label']))}. The "
        "loss is that of the criterion, on the validation set. Data checksum "
        f"{'; '.join(distinct(finished['data.checksum'].str[:16]))}; commit "
        f"{'; '.join(distinct(commits(finished)))}; {'; '.join(numbers)}."
    )


def published_table(folder: Path) -> str:
    """The table and figure in ``folder``, for the documentation."""
    page = folder / "warmup.md"
    if not page.exists():
        return "These runs are not finished yet."
    place = "/".join(folder.parts[-3:])
    return f"{read_text(page)}\n![validation losses](../{place}/warmup.svg)"


def main(argv: Sequence[str]) -> int:
    """The command line; its options are those of the sweep."""
    args = options.parse(options.sweep_parser("warmup"), [STUDY, *argv])
    if args.status or args.dry_run:
        return 0
    specs = read_specs(args).runs
    folder = specs[0].result.parent
    runs = read_runs(planned(specs), folder)
    page = {"warmup.md": f"{table(runs)}\n\n{provenance(runs)}\n"}
    print(*write_files(page | figure_files([figure(runs)]), folder), sep="\n")
    return 0
