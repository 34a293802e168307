#!/usr/bin/env python3
"""Draw the measurements of `benchmarks/layers.py --growth`, and report how the time grows.

    python benchmarks/plot.py --output growth.png     # needs matplotlib
    python benchmarks/plot.py --check                 # needs none

The picture has the time of a layer, and its ratio to LayerNorm's, against rows and channels. The
growth is the slope of the line through the logarithms of rows, from 1,024 on, and of time: 1 if the
time is proportional to the rows. It may be a little less, because the time of the calls matters in
small batches, and somewhat more: a batch that exceeds the caches may take five times as long per
row, which over a factor of 64 in rows adds log 5 / log 64 = 0.39.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layers import BOTH, UNIT
from measuring.command import plain_parser, quiet, report
from measuring.records import RESULTS, SAME_LAYER, read_rows
from norm_lab.report.figure import style
from norm_plugin.io.command_line import run_command
from norm_plugin.io.files import atomic_write

PANELS = (("rows", "channels", 512), ("channels", "rows", 4096))
"""The columns of the picture: an axis, and the fixed quantity."""
QUANTITIES = {"p50_ms": "ms, forward and backward", "ratio": "ratio to LayerNorm"}
FIRST_ROWS = 1024
LEAST_SLOPE, MOST_SLOPE = 0.8, 1.4


def series(rows: pd.DataFrame, against: str, fixed: str, value: int) -> dict[str, pd.DataFrame]:
    """Return the training times of each norm and form by rows or channels, the other fixed.

    Names are like ``powernorm variant=released, fused``.
    """
    training = rows[(rows["direction"] == BOTH) & (rows[fixed] == value)]
    setups = (training["norm"] + " " + training["options"]).str.strip()
    groups = training.groupby(setups + ", " + training["provider"], sort=False)
    return {str(name): points.sort_values(against) for name, points in groups}


def slope(points: pd.DataFrame) -> float | None:
    """Return the slope of log time over log rows; None with fewer than two sizes."""
    points = points[points["rows"] >= FIRST_ROWS]
    if len(points) < 2:
        return None
    rows, ms = (np.log(points[name].to_numpy(float)) for name in ("rows", "p50_ms"))
    return float(np.polyfit(rows, ms, 1)[0])


def misses(slopes: dict[str, float | None]) -> Iterator[str]:
    """Yield a line for each series whose time does not grow like the rows, or without data."""
    if not any(value is not None for value in slopes.values()):
        yield "no growth measured; run python benchmarks/layers.py --growth"
    for name, value in slopes.items():
        if value is not None and not LEAST_SLOPE <= value <= MOST_SLOPE:
            yield f"{name}: slope {value:.2f}, wanted from {LEAST_SLOPE} to {MOST_SLOPE}"


def draw(rows: pd.DataFrame, norms: Sequence[str] | None, output: Path) -> None:
    """Write the picture, in the format of the file name's ending.

    It has the fused forms of ``norms`` (None: all), and torch's LayerNorm.
    """
    from matplotlib.figure import Figure  # not needed for the slopes

    fused = (rows["provider"] == "fused") & rows["norm"].isin(norms or rows["norm"])
    stock = (rows["provider"] == UNIT) & (rows["norm"] == "layernorm") & (rows["options"] == "")
    shown = pd.concat([rows[stock], rows[fused]])
    figure = Figure(figsize=(14, 10), layout="constrained")
    axes = figure.subplots(2, 2)
    lines: dict[str, Any] = {}
    for column, (against, fixed, value) in zip(axes.T, PANELS):
        for name, points in series(shown, against, fixed, value).items():
            if len(points) < 2:
                continue
            look = style(list(lines).index(name) if name in lines else len(lines))
            for axis, what in zip(column, QUANTITIES):
                (lines[name],) = axis.plot(points[against], points[what], marker=".", **look)
        for axis, title in zip(column, QUANTITIES.values()):
            axis.set(xscale="log", xlabel=f"{against} ({fixed}: {value:,})", ylabel=title)
        column[0].set_yscale("log")
    axes[0, 0].legend(lines.values(), lines.keys(), fontsize="x-small")
    with atomic_write(output) as stream:
        figure.savefig(stream, format=output.suffix[1:] or "png")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; with --check, return 1 if a time does not grow like the rows."""
    parser = plain_parser(__doc__)
    parser.add_argument(
        "--input",
        type=Path,
        default=RESULTS / "layers.csv",
        metavar="FILE",
        help="default: benchmarks/results/layers.csv",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the picture, .png or .svg")
    parser.add_argument("--norms", nargs="+", metavar="NORM", help="norms to draw (default: all)")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with 1 if a slope is not from {LEAST_SLOPE} to {MOST_SLOPE}",
    )
    args = parser.parse_args(argv)
    quiet()
    rows = read_rows(args.input, SAME_LAYER, ("p50_ms", "ratio"))
    slopes = {name: slope(points) for name, points in series(rows, *PANELS[0]).items()}
    for name, value in slopes.items():
        if value is not None:
            print(f"{name:75} time ~ rows^{value:.2f}")
    if args.output:
        draw(rows, args.norms, args.output)
    return report(misses(slopes)) if args.check else 0


if __name__ == "__main__":
    run_command(main)
