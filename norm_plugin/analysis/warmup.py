"""A table and a figure of the warm-up study: configs/study/warmup.yaml.

    norm-plugin warmup --results results/warmup

It takes the arguments that the sweep was started with. Beside the results of the runs it writes
``warmup.md`` with the table, and ``warmup.svg`` with the validation loss of every run; its data are
in ``warmup.csv``. A run that diverged has its losses up to then. docs/warmup.md explains the
schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import COLORS, Figure, draw
from norm_plugin.analysis.report import commits
from norm_plugin.commands.command_line import CommandError, hide_warnings, read_text, write_text
from norm_plugin.experiments import options
from norm_plugin.experiments.metrics import find_metric
from norm_plugin.experiments.naming import flag_settings
from norm_plugin.experiments.results import RUN_KEY, read_curves, read_failures, read_results
from norm_plugin.experiments.spec import RunSpec, read_specs
from norm_plugin.experiments.tables import markdown

STUDY = "warmup"
FINISHED, NOT_RUN = "finished", "not run"
DASHES = {"pre": "-", "post": "--"}


def schedule(flags: dict[str, Any]) -> str:
    """The warm-up as docs/warmup.md names it, from the flags of ``fairseq-train``."""
    if flags["lr-scheduler"] == "fixed":
        return "none, fixed rate"
    updates = int(flags["warmup-updates"])
    if float(flags["warmup-init-lr"]) == float(flags["lr"]):
        return f"0, constant for {updates}"
    return str(updates)


def planned(plans: Sequence[RunSpec]) -> pd.DataFrame:
    """The runs of the study in its order: what names their results, and what they compare."""
    rows = []
    for plan in plans:
        flags = flag_settings(plan.training)
        rows.append(
            {
                "experiment": plan.experiment,
                "norm": f"{plan.label}{plan.variant}",
                "seed": plan.seed,
                "placement": flags["norm-placement"],
                "warm-up": schedule(flags),
                "learning rate": float(flags["lr"]),
            }
        )
    return pd.DataFrame(rows)


def read_runs(plan: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The planned runs with what became of each.

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
    """A row for each run, in Markdown."""
    shown = runs[["placement", "warm-up"]].copy()
    shown["learning rate"] = runs["learning rate"].map("{:g}".format)
    for name, column in (("BLEU", "score"), ("best loss", "best"), ("last loss", "last")):
        shown[name] = runs[column].map("{:.2f}".format, "ignore").fillna("-")
    shown["state"] = runs["state"]
    return markdown(shown, ["---", *["---:"] * (len(shown.columns) - 2), "---"])


def figure(runs: pd.DataFrame) -> Figure:
    """The validation loss of every run that has begun; that of a failed one ends in a cross."""
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
        axes.set_xlabel("updates")
        axes.set_ylabel("validation loss, bits a token")
        axes.legend(fontsize=8, ncols=2)

    points = drawn.explode("losses", ignore_index=True)
    data = points[["placement", "warm-up", "learning rate"]].set_axis(
        ["placement", "warmup", "lr"], axis=1
    )
    data[["updates", "loss"]] = points["losses"].tolist()
    return Figure(
        STUDY,
        "Validation loss of every run: placement, learning rate, warm-up.",
        draw(plot, height=5, name=STUDY),
        data.astype({"updates": int}),
    )


def provenance(runs: pd.DataFrame) -> str:
    """Seeds, data, commits and versions of the runs that finished."""
    finished = runs[runs["state"] == FINISHED]

    def distinct(values: Sequence[Any]) -> str:
        return "; ".join(dict.fromkeys(map(str, values)))

    metric = find_metric(finished["metric"].iloc[0])
    packages = [name for name in finished if name.startswith("versions.")]
    versions = [
        ", ".join(f"{name.removeprefix('versions.')} {value}" for name, value in zip(packages, row))
        for row in finished[packages].to_numpy()
    ]
    seeds = distinct(finished["seed"])
    many = f"Seeds {seeds}"
    if ";" not in seeds:
        many = f"One seed, {seeds}, so a difference between two rows can be noise"
    label = distinct(finished[f"scores.{metric.headline}.label"])
    checksum = distinct(finished["data.checksum"].str[:16])
    return (
        f"{many}. BLEU is {label}. The loss is that of the criterion, on the validation set. Data "
        f"checksum {checksum}; commit {distinct(commits(finished))}; {distinct(versions)}."
    )


def write_page(runs: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the table, the figure and its data into ``folder``; the paths written."""
    drawn = figure(runs)
    texts = {
        "warmup.md": f"{table(runs)}\n\n{provenance(runs)}\n",
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


def main(argv: Sequence[str]) -> int:
    """The command line, which is that of the sweep."""
    hide_warnings()
    args = options.parse(options.sweep_parser("warmup"), [STUDY, *argv])
    if args.status or args.dry_run:
        return 0
    plans = read_specs(args).runs
    folder = plans[0].result.parent
    for path in write_page(read_runs(planned(plans), folder), folder):
        print(path)
    return 0
