"""The page on deep stacks: a table, figures with their data, from the rows of ``runs.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from norm_plugin.analysis.figures import Figure, draw, style
from norm_plugin.commands.command_line import CommandError, read_json, read_lines, write_text

Row = dict[str, Any]
SIDES = ("encoder", "decoder")


def read_rows(folder: Path) -> list[Row]:
    """The runs of a folder; raises CommandError where there are none."""
    rows = [json.loads(line) for line in read_lines(folder / "runs.jsonl")]
    if not rows:
        raise CommandError(f"{folder / 'runs.jsonl'} has no runs yet")
    return rows


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
    words = "one seed" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return "\n".join([*lines, "", f"Each cell has {words}."])


def gradient_ratio(row: Row, update: str, side: str) -> float | None:
    """The gradient norm in the last layer of a stack, divided by that in the first."""
    found = layers_of(row, update, side)
    if len(found) < row["layers"] or not found[0]:
        return None
    return found[-1] / found[0]


def layers_of(row: Row, update: str, side: str) -> list[float]:
    """The gradient norms of the layers of a stack, from the bottom."""
    gradients = row["gradients"].get(update, {})
    paths = [f"{side}.layers.{index}" for index in range(row["layers"])]
    return [gradients[path] for path in paths if path in gradients]


def gradient_table(rows: Sequence[Row], layers: int) -> str:
    """Gradient norms of the first and last layer before the first update, mean over seeds."""
    header = ["placement", *(f"{side}, {end}" for side in SIDES for end in ("first", "last"))]
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
    """The training loss over updates at one depth, mean over the seeds that did not diverge."""
    name = f"loss-{layers}"
    curves = {}
    for placement in placements_of(rows):
        runs = of(rows, placement, layers)
        length = max((len(row["losses"]) for row in runs), default=0)
        points = []
        for index in range(length):
            values = [row["losses"][index] for row in runs if len(row["losses"]) > index]
            points.append(mean(values))
        curves[placement] = points
    step = rows[0]["updates"] / max(map(len, curves.values()))

    def plot(axes: Any) -> None:
        for place, (placement, points) in enumerate(curves.items()):
            updates = [step * (index + 1) for index in range(len(points))]
            axes.plot(updates, points, **style(place), label=placement)
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
        [
            (placement, round(step * (index + 1)), value)
            for placement, points in curves.items()
            for index, value in enumerate(points)
        ],
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


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Losses and gradients of the deepest models."""
    deepest = max(row["layers"] for row in rows)
    last = str(max(row["updates"] for row in rows))
    return [
        loss_figure(rows, deepest),
        gradient_figure(rows, deepest, "1", "gradients-first-update"),
        gradient_figure(rows, deepest, last, "gradients-last-update"),
    ]


def provenance(facts: dict[str, Any]) -> str:
    """Settings, commit, versions and command, as Markdown."""
    settings, git = facts["settings"], facts["git"]
    changed = ", ".join(f"`--{name} {value}`" for name, value in settings["changed"].items())
    numbers = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    commit = (git["commit"] or "unknown")[:10] + (" and changes" if git["dirty"] else "")
    return (
        f"Settings: `configs/{settings['recipe']}.yaml` with {changed}; {settings['updates']} "
        f"updates. Data: {facts['data']['corpus']}, checksum {facts['data']['checksum'][:16]}. "
        f"Commit {commit}, {facts['date']}; {numbers}; {facts['machine']['device']}.\n\n"
        f"```bash\n{facts['command']}\n```"
    )


BLOCKS: dict[str, Callable[[list[Row]], str]] = {
    "losses": table,
    "gradients": lambda rows: gradient_table(rows, max(row["layers"] for row in rows)),
}


def deep_stacks_block(name: str, folder: Path) -> str:
    """A block of the documentation: ``losses``, ``gradients`` or ``provenance``."""
    if name == "provenance":
        return provenance(read_json(folder / "about.json"))
    if name not in BLOCKS:
        raise CommandError(f"no block {name}; choose from {', '.join([*BLOCKS, 'provenance'])}")
    return BLOCKS[name](read_rows(folder))


def write_page(folder: Path) -> None:
    """Write each figure of ``folder`` as SVG and CSV, and ``runs.csv`` with a line a run."""
    rows = read_rows(folder)
    for figure in figures(rows):
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
