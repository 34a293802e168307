"""The page on deep stacks: a table, figures with their data, from the rows of ``runs.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from statistics import mean
from typing import Any

from norm_plugin.analysis.deep_stacks_rows import ABOUT, ORIGIN, Row, read_rows
from norm_plugin.analysis.figures import Figure, draw, style
from norm_plugin.commands.command_line import CommandError, read_json, write_text
from norm_plugin.experiments.provenance import short_commit

SIDES = ("encoder", "decoder")
WINDOW = 10
"""Updates over which the training loss is averaged."""


def placements_of(rows: Sequence[Row]) -> list[str]:
    """In the order of the runs."""
    return list(dict.fromkeys(row["placement"] for row in rows))


def of(rows: Sequence[Row], placement: str, layers: int) -> list[Row]:
    """The runs of a placement and depth, by seed."""
    found = [row for row in rows if (row["placement"], row["layers"]) == (placement, layers)]
    return sorted(found, key=lambda row: row["seed"])


def verdict(row: Row) -> str:
    """What became of a run: its validation loss, and what is wrong with it."""
    if row["valid"] is None:
        return f"diverged ({row['diverged']})" if row["diverged"] else "diverged"
    return f"{row['valid']:.2f}" + ("" if row["valid"] < row["unigram"] else " (not trained)")


def table(rows: Sequence[Row]) -> str:
    """The validation loss of each run, by placement and depth."""
    depths = sorted({row["layers"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    header = ["placement", *(f"{depth} + {depth} layers" for depth in depths)]
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * len(depths)}"]
    for placement in placements_of(rows):
        cells = [", ".join(map(verdict, of(rows, placement, depth))) or "-" for depth in depths]
        lines.append(f"| `{placement}` | {' | '.join(cells)} |")
    words = f"seeds {', '.join(map(str, seeds))}"
    if len(seeds) == 1:
        words = "one seed, so a difference between two cells can be noise"
    return "\n".join([*lines, "", f"Each cell has {words}."])


def layers_of(row: Row, update: str, side: str) -> list[float]:
    """The gradient norms of the layers of a stack, from the bottom."""
    gradients = row["gradients"].get(update, {})
    paths = [f"{side}.layers.{index}" for index in range(row["layers"])]
    return [gradients[path] for path in paths if path in gradients]


def gradient_table(rows: Sequence[Row], layers: int) -> str:
    """Gradient norms of the first and last layer before the first update, mean over seeds."""
    ends = [f"{side}, layer {number}" for side in SIDES for number in (1, layers)]
    header = ["placement", *ends]
    lines = [f"| {' | '.join(header)} |", "| --- | ---: | ---: | ---: | ---: |"]
    for placement in placements_of(rows):
        cells = []
        for side in SIDES:
            found = [layers_of(row, "1", side) for row in of(rows, placement, layers)]
            for end in (0, -1):
                values = [one[end] for one in found if len(one) == layers]
                cells.append(f"{mean(values):.2g}" if values else "-")
        lines.append(f"| `{placement}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def loss_figure(rows: Sequence[Row], layers: int) -> Figure:
    """The training loss over updates at one depth, mean over the seeds that came so far."""
    name = f"loss-{layers}"
    curves: dict[str, list[tuple[int, float]]] = {}
    for placement in placements_of(rows):
        losses = zip_longest(*(row["losses"] for row in of(rows, placement, layers)))
        curves[placement] = [
            (WINDOW * number, mean(value for value in values if value is not None))
            for number, values in enumerate(losses, start=1)
        ]

    def plot(axes: Any) -> None:
        for place, (placement, points) in enumerate(curves.items()):
            axes.plot(*zip(*points) if points else ([], []), **style(place), label=placement)
        axes.axhline(rows[0]["unigram"], color="#888888", linewidth=0.8)
        axes.set_xlabel("updates")
        axes.set_ylabel("training loss, bits a token")
        axes.legend(fontsize=8, ncols=2)

    return Figure(
        name,
        f"Training loss with {layers} + {layers} layers. The gray line is the loss of word "
        "frequencies alone.",
        draw(plot, height=4.2, name=name),
        ("placement", "updates", "loss"),
        [(placement, *point) for placement, points in curves.items() for point in points],
    )


def gradient_figure(rows: Sequence[Row], layers: int, update: str, name: str) -> Figure:
    """Gradient norms by layer: encoder, then decoder; mean over seeds."""
    found: dict[str, list[tuple[int, str, float]]] = {}
    for placement in placements_of(rows):
        runs = of(rows, placement, layers)
        points = []
        for offset, side in enumerate(SIDES):
            values = [one for row in runs if len(one := layers_of(row, update, side)) == layers]
            for index, column in enumerate(zip(*values)):
                points.append((offset * layers + index + 1, side, mean(column)))
        found[placement] = points

    def plot(axes: Any) -> None:
        for place, (placement, points) in enumerate(found.items()):
            for side in SIDES:
                line = [(number, value) for number, one, value in points if one == side]
                label = {"label": placement} if side == SIDES[0] else {}
                axes.plot(*zip(*line) if line else ([], []), **style(place), **label)
        axes.set_yscale("log")
        axes.set_xlabel(f"layer: encoder 1 to {layers}, then decoder")
        axes.set_ylabel("norm of the gradient of the second FFN matrix")
        axes.legend(fontsize=8, ncols=2)

    return Figure(
        name,
        f"Gradient norms in update {update} with {layers} + {layers} layers.",
        draw(plot, height=4.2, name=name),
        ("placement", "layer", "side", "gradient_norm"),
        [(placement, *point) for placement, points in found.items() for point in points],
    )


def depth_of_figures(rows: Sequence[Row]) -> int:
    """The greatest depth at which every placement has a run."""
    placements = {row["placement"] for row in rows}
    depths = {row["layers"] for row in rows}
    return max(
        (depth for depth in depths if all(of(rows, one, depth) for one in placements)),
        default=min(depths),
    )


def figures(rows: Sequence[Row]) -> dict[str, list[Figure]]:
    """Those of each block of the documentation."""
    deepest = depth_of_figures(rows)
    last = str(max(row["updates"] for row in rows))
    return {
        "losses": [loss_figure(rows, deepest)],
        "gradients": [
            gradient_figure(rows, deepest, "1", "gradients-first-update"),
            gradient_figure(rows, deepest, last, "gradients-last-update"),
        ],
    }


def provenance(facts: dict[str, Any], rows: Sequence[Row]) -> str:
    """Settings, versions, and the commits and commands of the rows, as Markdown.

    Args:
        facts: of ``about.json``.
    """
    settings = facts["settings"]
    of_rows = [{**{name: facts[name] for name in ORIGIN}, **row} for row in rows]
    commits = list(dict.fromkeys(short_commit(row["git"]) for row in of_rows))
    commands = "\n".join(dict.fromkeys(row["command"] for row in of_rows))
    changed = ", ".join(f"`--{name} {value}`" for name, value in settings["changed"].items())
    numbers = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    return (
        f"Settings: `configs/{settings['recipe']}.yaml` with {changed}; {settings['updates']} "
        f"updates. Data: {facts['data']['corpus']}, checksum {facts['data']['checksum'][:16]}. "
        f"{'Commits' if len(commits) > 1 else 'Commit'} {', '.join(commits)}, {facts['date']}; "
        f"{numbers}; {facts['machine']['device']}.\n\n"
        f"```bash\n{commands}\n```"
    )


BLOCKS: dict[str, Callable[[list[Row]], str]] = {
    "losses": table,
    "gradients": lambda rows: gradient_table(rows, depth_of_figures(rows)),
}


def deep_stacks_block(name: str, folder: Path) -> str:
    """A block of the documentation: ``losses``, ``gradients`` or ``provenance``."""
    if name == "provenance":
        return provenance(read_json(folder / ABOUT), read_rows(folder))
    if name not in BLOCKS:
        raise CommandError(f"no block {name}; choose from {', '.join([*BLOCKS, 'provenance'])}")
    rows = read_rows(folder)
    place = "/".join(folder.parts[-2:])
    drawn = [f"![{one.title}](../{place}/{one.name}.svg)" for one in figures(rows)[name]]
    return "\n\n".join([BLOCKS[name](rows), *drawn])


def write_page(folder: Path) -> None:
    """Write each figure of ``folder`` as SVG and CSV, and ``runs.csv`` with a line a run."""
    rows = read_rows(folder)
    for figure in chain.from_iterable(figures(rows).values()):
        write_text(folder / f"{figure.name}.svg", figure.standalone)
        write_text(folder / f"{figure.name}.csv", figure.data)
    lines = ["placement,layers,seed,valid_loss,diverged_in_update,unigram_loss"]
    lines += [
        ",".join(
            "" if row[key] is None else str(row[key])
            for key in ("placement", "layers", "seed", "valid", "diverged", "unigram")
        )
        for row in rows
    ]
    write_text(folder / "runs.csv", "\n".join(lines) + "\n")
