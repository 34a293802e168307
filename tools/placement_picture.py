#!/usr/bin/env python3
"""Draw placements from their declarations: streams, branches, norms, and what is learned.

    python tools/placement_picture.py                           docs/placements.svg, all of them
    python tools/placement_picture.py --user-dir DIR --output own.png my-placement

A panel shows one layer, from below: the residual stream as a vertical line, next to it the
attention A and the feed-forward network F, and a colored box for each norm. If layers differ, it
shows one of each kind. Factors are the initial ones, in the last of such layers of 8. The norms of
an attention over an encoder are those of the self-attention.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from declared_tables import LAYERS, each_layer, place
from norm_plugin.io.command_line import run_command
from norm_plugin.io.user_dirs import import_folder
from norm_plugin.placements import (
    IN_ATTENTION,
    INNER,
    INPUT,
    OUTPUT,
    PLACEMENTS,
    STREAM,
    SUM,
    Placement,
    Stream,
    first_stream,
    placement_class,
)

OUTPUT_FILE = Path(__file__).resolve().parents[1] / "docs" / "placements.svg"
COLUMNS = 5
NORM, LEARNED, LINE = "#2a78b5", "#b5452a", "#555555"
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "norm_plugin", "font.size": 7}
X, BRANCH, GAP = 0.0, 1.55, 0.32  # positions of the stream and branches, and between streams
STEP = 1.0  # the height of a branch with its norms
STANDARD = (STREAM, INPUT, INNER, OUTPUT, SUM, *IN_ATTENTION)
"""The slots that every placement may use; other words are a placement's own."""


def picture(names: Sequence[str]) -> Figure:
    """Return a panel for each of the placements ``names``."""
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.1 * columns, 3.0 * rows), layout="constrained")
        for index, name in enumerate(names, start=1):
            draw(figure.add_subplot(rows, columns, index), name)
    return figure


def draw(axes: Any, name: str) -> None:
    """Draw the panel of placement ``name``."""
    cls = placement_class(name)
    kinds = each_layer(cls)
    axes.set_title(name, fontsize=9, fontweight="bold")
    y = 0.0
    if cls.embedding_norm:
        y = norm(axes, X, y, "norm") + 0.25
    for kind, layers in kinds.items():
        if len(kinds) > 1:
            which = f"layers {layers[0]} to {layers[-1]}" if len(layers) > 1 else "layer 1"
            where = {"rotation": 90, "ha": "center", "color": LINE}
            axes.text(BRANCH + 0.7, y + 0.25, f"{which} of {LAYERS}", **where)
        bottom = y
        for branch, letter in (("self", "A"), ("ffn", "F")):
            y = draw_branch(axes, kind(place(layers[-1])), branch, letter, y, bottom)
    top = draw_top(axes, cls, y + 0.15)
    for number in range(cls.streams):
        x = X - GAP * number
        axes.plot([x, x], [-0.35, top + 0.2], color=LINE, lw=1.2, zorder=0)
    axes.annotate(
        "", (X, top + 0.4), (X, top + 0.15), arrowprops={"arrowstyle": "->", "color": LINE}
    )
    shared = ", ".join(sorted({scale for scale in learned(cls) if "." not in scale}))
    if shared:
        axes.text(BRANCH, -0.3, f"learned: {shared}", ha="center", color=LEARNED)
    axes.text(0.75, -0.55, fill(cls.equation, 34), ha="center", va="top", fontsize=6.5)
    axes.set(xlim=(-0.75, 2.4), ylim=(-1.5, max(top + 0.5, 3.0)))
    axes.set_axis_off()


def draw_top(axes: Any, cls: type[Placement], y: float) -> float:
    """Draw the norms after the stack, from height y; return the height of their top."""
    for number, _ in enumerate(cls.final_norms):
        norm(axes, X - GAP * number, y, "norm", 0.28)
    y += 0.35 if cls.final_norms else 0
    if not cls.final_norm:
        return y
    # 1, 10, 100, ... tell which streams are in a sum
    streams = [torch.tensor(10.0**number) for number in range(cls.streams)]
    given = cls.before_final_norm(streams, lambda word, x: x)
    alone = [number for number, stream in enumerate(streams) if stream == given]
    x = X - GAP * alone[0] if alone else X
    for number in range(1, 0 if alone else cls.streams):  # the others join the first
        arrow(axes, (X - GAP * number, y), (X, y))
    y = norm(axes, x, y + 0.05, "norm")
    if alone and alone[0]:  # back to the first stream
        arrow(axes, (x, y), (X, y))
    return y


def factors(placement: Placement, branch: str) -> dict[str, float]:
    """Return factors at a branch: those of what it reads, and of what is summed after it.

    The layer's input and the stream are read; the two and the branch's output are summed.
    ``input`` is the factor of the branch's input after its norm.
    """
    zero, ones = torch.zeros(1, 1, placement.place.dim), torch.ones(1, 1, placement.place.dim)
    coefficients = {}
    for name, bottom, x, fx in (
        ("layer", ones, zero, zero),
        ("stream", zero, ones, zero),
        ("branch", zero, zero, ones),
    ):
        stream: Stream = x
        begun = placement.eval().begin(bottom)
        if isinstance(begun, tuple):  # the others are streams, or the input again
            stream = (x, *([zero] * (placement.streams - 1) or begun[1:]))
        stream, read = placement.read(stream, branch, lambda branch, slot, y: y)
        coefficients[f"{name} read"] = read.mean().item()
        coefficients[name] = first_stream(placement.join(stream, fx, branch)).mean().item()
    return {**coefficients, "input": placement.enter(ones, branch).mean().item()}


def draw_branch(
    axes: Any, kind: Placement, branch: str, letter: str, y: float, bottom: float
) -> float:
    """Draw a branch that leaves the stream at height y; return the height above it.

    Args:
        bottom: the height at which the layer begins.
    """
    slots, times = kind.norms_of(branch), factors(kind, branch)
    for name, at in (
        ("stream", (X - 0.08, y + STEP - 0.12, "right")),
        ("branch", (X + 0.2, y + STEP + 0.16, "left")),
        ("input", (BRANCH - 0.1, y + 0.2, "right")),
    ):
        if abs(times[name] - 1) > 1e-6:
            axes.text(*at[:2], f"\N{MULTIPLICATION SIGN}{times[name]:.2g}", ha=at[2], color=LINE)
    if times["layer"]:  # the input of the layer is added again
        arrow(
            axes,
            (X, bottom + 0.18),
            (X - 0.3, bottom + 0.18),
            (X - 0.3, y + STEP + 0.1),
            (X - 0.07, y + STEP + 0.1),
        )
    if STREAM in slots:
        y = norm(axes, X, y, "norm")
    low, high = y + 0.1, y + 0.1 + STEP
    own = [word for word in slots if word not in STANDARD]
    for number, _ in enumerate(own):  # a norm of the placement's own, on the branch's input
        norm(axes, X - GAP * (number + 1), low - 0.1, "norm", 0.28)
        arrow(axes, (X - GAP * (number + 1), low + 0.12), (X, low + 0.12))
    foot = low + 0.12 if own else low
    middle = (low + high) / 2 + 0.06
    into_branch = ((BRANCH, foot), (BRANCH, middle - 0.13))
    beside = branch != "self" and times["layer read"]  # as in parallel branches
    if beside:
        low = bottom + 0.04
        arrow(axes, (X, low), (X + 0.25, low), (X + 0.25, foot), *into_branch)
    if times["stream read"] or not beside:
        arrow(axes, (X, foot), *into_branch)
    if INPUT in slots:
        norm(axes, (X + BRANCH) / 2, foot - 0.11, "norm")
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": LINE}
    axes.text(BRANCH, middle, letter, ha="center", va="center", bbox=box)
    if any(slot in slots for slot in IN_ATTENTION):
        heads = " ".join(slot[0] for slot in IN_ATTENTION if slot in slots)
        norm(axes, BRANCH + 0.38, middle - 0.11, heads)
    if INNER in slots:
        norm(axes, BRANCH, middle + 0.13, "norm")
    arrow(axes, (BRANCH, middle), (BRANCH, high), (X + 0.07, high))
    if OUTPUT in slots:
        norm(axes, (X + BRANCH) / 2, high - 0.11, "norm")
    for number in range(kind.streams):
        circle = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "edgecolor": LINE}
        axes.text(X - GAP * number, high, "+", ha="center", va="center", bbox=circle, fontsize=6)
    scales = [
        scale.partition(".")[0] for scale in learned(type(kind)) if scale.endswith(f".{branch}")
    ]
    if scales:
        axes.text(BRANCH - 0.18, middle - 0.05, ", ".join(scales), ha="right", color=LEARNED)
    high += 0.3 if OUTPUT in slots else 0.12
    return norm(axes, X, high, "norm") if SUM in slots else high


def norm(axes: Any, x: float, y: float, label: str, width: float = 0.6) -> float:
    """Draw the box of a norm that begins at height y; return the height of its top."""
    box = {"boxstyle": "square,pad=0.18", "facecolor": NORM, "edgecolor": "none"}
    text = label if width > 0.3 else "n"
    axes.text(
        x, y + 0.11, text, ha="center", va="center", color="white", fontsize=5.5, bbox=box, gid=NORM
    )
    return y + 0.26


def arrow(axes: Any, *points: tuple[float, float]) -> None:
    """Draw a line through the points, with an arrowhead at the last one."""
    xs, ys = zip(*points)
    axes.plot(xs, ys, color=LINE, lw=0.9, zorder=0)
    head = {"arrowstyle": "->", "color": LINE, "lw": 0.9}
    axes.annotate("", points[-1], points[-2], arrowprops=head, zorder=0)


def learned(cls: type[Placement]) -> Iterator[str]:
    """Yield the parameters of a layer that are the placement's own, as ``scale.ffn``."""
    at = place(1)
    return (name for name, _ in cls.at(at)(at).named_parameters())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python tools/placement_picture.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="placements (default: all)")
    parser.add_argument("--user-dir", type=Path, metavar="DIR", help="with placements of your own")
    text = "needed with NAME (default: docs/placements.svg)"
    parser.add_argument("--output", type=Path, metavar="FILE", help=text)
    args = parser.parse_args(argv)
    if args.names and not args.output:
        parser.error("--output is missing: docs/placements.svg shows all placements")
    output = args.output or OUTPUT_FILE
    if args.user_dir:
        import_folder(args.user_dir)
    # Importing fairseq lets the debug lines of all libraries through
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    metadata = {"Date": None} if output.suffix == ".svg" else None
    with rc_context(STYLE):
        picture(args.names or sorted(PLACEMENTS)).savefig(output, dpi=150, metadata=metadata)
    return 0


if __name__ == "__main__":
    run_command(main)
