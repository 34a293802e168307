"""Tables and figures of the runs of deep stacks in ``runs.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import Figure, legend_below, legend_height, style
from norm_plugin.analysis.report import figure_files, write_files
from norm_plugin.analysis.study import markdown
from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.collect import short_commit

ABOUT, RUNS = "about.json", "runs.jsonl"
ORIGIN = ("git", "command")
"""Columns that older runs lack; they are then read from ``about.json``."""
SIDES = ("encoder", "decoder")
WINDOW = 10
"""Updates over which the training loss is averaged."""


def read_runs(folder: Path) -> pd.DataFrame:
    """The runs of a folder, one row each; CommandError if a line is not JSON."""
    about = read_json(folder / ABOUT)
    origin = {name: about[name] for name in ORIGIN}
    try:
        rows = [json.loads(line) for line in read_lines(folder / RUNS)]
    except json.JSONDecodeError as error:
        raise CommandError(f"{folder / RUNS} has a line that is not JSON: {error}") from error
    return pd.DataFrame([{**origin, **row} for row in rows])


def losses_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The training loss by placement, layers and updates: means over the seeds that got so far."""
    points = runs.explode("losses").astype({"losses": float})
    window = points.groupby(level=0).cumcount() + 1
    points = points.assign(updates=WINDOW * window).dropna(subset="losses")
    by = points.groupby(["placement", "layers", "updates"], sort=False)["losses"]
    return by.mean().rename("loss").reset_index()


def gradients_of(runs: pd.DataFrame) -> pd.DataFrame:
    """The norm of the gradient of the second FFN matrix, mean over seeds.

    Updates with a gradient that is not finite are left out.

    Returns:
        columns ``placement``, ``layers``, ``update``, ``side``, ``layer`` from 1, and
        ``gradient_norm``.
    """
    columns = ["placement", "layers", "update", "side", "layer"]
    rows = [
        (run.placement, run.layers, int(update), side, layer, norms[f"{side}.layers.{layer - 1}"])
        for run in runs.itertuples()
        for update, norms in run.gradients.items()
        for side in SIDES
        if sum(path.startswith(side) for path in norms) == run.layers
        for layer in range(1, run.layers + 1)
    ]
    gradients = pd.DataFrame(rows, columns=[*columns, "gradient_norm"])
    return gradients.groupby(columns, sort=False)["gradient_norm"].mean().reset_index()


def depth_of_figures(runs: pd.DataFrame) -> int:
    """The largest depth at which every placement has a run."""
    placements = runs.groupby("layers")["placement"].nunique()
    complete = placements[placements == runs["placement"].nunique()]
    return int(max(complete.index, default=min(placements.index)))


# Tables


def outcome(run: Any) -> str:
    """The validation loss of a run, and whether it diverged or learned nothing."""
    if pd.isna(run.valid):
        return "diverged" if pd.isna(run.diverged) else f"diverged ({run.diverged:.0f})"
    return f"{run.valid:.2f}" + ("" if run.valid < run.unigram else " (not trained)")


def loss_table(runs: pd.DataFrame) -> str:
    """The validation loss of each run, by placement and depth."""
    runs = runs.sort_values("seed", kind="stable")
    cells = runs.assign(cell=[outcome(run) for run in runs.itertuples()])
    table = cells.pivot_table("cell", "placement", "layers", aggfunc=", ".join, sort=True)
    table = table.reindex(runs.sort_index()["placement"].unique())
    table.columns = [f"{depth} + {depth} layers" for depth in table.columns]
    seeds = sorted(set(runs["seed"]))
    note = f"seeds {', '.join(map(str, seeds))}"
    if len(seeds) == 1:
        note = "one seed, so a difference between two cells can be noise"
    return f"{_markdown(table)}\n\nEach cell has {note}."


def gradient_table(runs: pd.DataFrame) -> str:
    """Gradient norms of the first and last layer before the first update."""
    layers = depth_of_figures(runs)
    gradients = gradients_of(runs[runs["layers"] == layers]).query("update == 1")
    table = gradients.pivot(index="placement", columns=["side", "layer"], values="gradient_norm")
    ends = [(side, layer) for side in SIDES for layer in (1, layers)]
    table = table.reindex(runs["placement"].unique(), columns=pd.MultiIndex.from_tuples(ends))
    table = table.map("{:.2g}".format, "ignore")
    table.columns = [f"{side}, layer {layer}" for side, layer in ends]
    return _markdown(table)


def _markdown(table: pd.DataFrame) -> str:
    """A table by placement in Markdown, with ``-`` for missing cells."""
    rows = table.fillna("-").rename(index="`{}`".format).reset_index(names="placement")
    return markdown(rows, ["---", *["---:"] * len(table.columns)])


# Figures


def loss_figure(runs: pd.DataFrame) -> Figure:
    """The training loss over updates at the depth of the figures."""
    layers = depth_of_figures(runs)
    losses = losses_of(runs[runs["layers"] == layers])

    def plot(axes: Any) -> None:
        for place, placement in enumerate(runs["placement"].unique()):
            some = losses[losses["placement"] == placement]
            axes.plot(some["updates"], some["loss"], **style(place), label=placement)
        axes.axhline(runs["unigram"].iloc[0], color="#888888", linewidth=0.8)
        axes.set(xlabel="updates", ylabel="training loss, bits a token")

    title = (
        f"Training loss with {layers} + {layers} layers. The gray line is the loss of word "
        "frequencies alone."
    )
    return _figure(f"loss-{layers}", title, plot, losses[["placement", "updates", "loss"]])


def gradient_figure(runs: pd.DataFrame, update: int, name: str) -> Figure:
    """Gradient norms by layer: encoder, then decoder."""
    layers = depth_of_figures(runs)
    gradients = gradients_of(runs[runs["layers"] == layers])
    gradients = gradients[gradients["update"] == update]
    layer = gradients["layer"] + layers * (gradients["side"] == "decoder")
    gradients = gradients.assign(layer=layer)

    def plot(axes: Any) -> None:
        for place, placement in enumerate(runs["placement"].unique()):
            of_placement = gradients[gradients["placement"] == placement]
            for side in SIDES:
                some = of_placement[of_placement["side"] == side]
                label = placement if side == SIDES[0] else None
                axes.plot(some["layer"], some["gradient_norm"], **style(place), label=label)
        label = "norm of the gradient of the second FFN matrix"
        axes.set(xlabel=f"layer: encoder 1 to {layers}, then decoder", ylabel=label, yscale="log")

    title = f"Gradient norms in update {update} with {layers} + {layers} layers."
    columns = ["placement", "layer", "side", "gradient_norm"]
    return _figure(name, title, plot, gradients[columns])


def _figure(name: str, title: str, plot: Callable[[Any], None], data: pd.DataFrame) -> Figure:
    """A figure with a legend of placements."""

    def with_legend(axes: Any) -> None:
        plot(axes)
        legend_below(axes)

    height = 3.8 + legend_height(list(data["placement"].unique()))
    return Figure(name, title, data, with_legend, height)


def figures(runs: pd.DataFrame) -> dict[str, list[Figure]]:
    """The figures of each block of the documentation."""
    return {
        "losses": [loss_figure(runs)],
        "gradients": [
            gradient_figure(runs, 1, "gradients-first-update"),
            gradient_figure(runs, runs["updates"].max(), "gradients-last-update"),
        ],
    }


# The documentation


def provenance(about: Mapping[str, Any], runs: pd.DataFrame) -> str:
    """Settings, versions, and the commits and commands of the runs, as Markdown.

    Args:
        about: the content of ``about.json``.
    """
    settings = about["settings"]
    commits = list(dict.fromkeys(map(short_commit, runs["git"])))
    changed = ", ".join(f"`--{name} {value}`" for name, value in settings["changed"].items())
    numbers = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if number)
    commands = "\n".join(dict.fromkeys(runs["command"]))
    return (
        f"Settings: `configs/{settings['recipe']}.yaml` with {changed}; {settings['updates']} "
        f"updates. Data: {about['data']['corpus']}, checksum {about['data']['checksum'][:16]}. "
        f"{'Commits' if len(commits) > 1 else 'Commit'} {', '.join(commits)}, {about['date']}; "
        f"{numbers}; {about['machine']['device']}.\n\n```bash\n{commands}\n```"
    )


def deep_stacks_block(name: str, folder: Path) -> str:
    """A block of the documentation: ``losses``, ``gradients`` or ``provenance``."""
    runs = read_runs(folder)
    if name == "provenance":
        return provenance(read_json(folder / ABOUT), runs)
    table = {"losses": loss_table, "gradients": gradient_table}[name](runs)
    place = "/".join(folder.parts[-2:])
    drawn = [f"![{fig.title}](../{place}/{fig.name}.svg)" for fig in figures(runs)[name]]
    return "\n\n".join([table, *drawn])


def write_page(folder: Path) -> None:
    """Write each figure of ``folder`` as SVG and CSV, and ``runs.csv`` with one row per run."""
    runs = read_runs(folder)
    columns = {"valid": "valid_loss", "diverged": "diverged_in_update", "unigram": "unigram_loss"}
    table = runs[["placement", "layers", "seed", *columns]].rename(columns=columns)
    table = table.astype({"diverged_in_update": "Int64"})
    drawn = figure_files(figure for of_block in figures(runs).values() for figure in of_block)
    write_files({**drawn, "runs.csv": table.to_csv(index=False)}, folder)
