#!/usr/bin/env python3
"""Draw what `benchmarks/layers.py --growth` measured, and tell how the time grows.

    python benchmarks/plot.py --output growth.png     # needs matplotlib
    python benchmarks/plot.py --check                 # needs none

The picture has the time of a layer, and its ratio to LayerNorm's, against rows and channels. The
growth is the slope of the line through the logarithms of rows, from 1,024 on, and of time: 1 where
the time is proportional to the rows. It may be a little less, as the time of the calls counts in
small batches, and somewhat more: a batch that has left the caches may take five times as long a
row, which over a factor of 64 in rows adds log 5 / log 64 = 0.39.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring.command import quiet, report
from measuring.providers import BOTH, UNIT
from measuring.records import RESULTS, SAME_LAYER, Row, newest, read_rows
from norm_plugin.analysis.figures import style
from norm_plugin.commands.command_line import CommandError, replacing, run_command

FIXED_CHANNELS, FIXED_ROWS = 512, 4096
FIRST_ROWS = 1024
LEAST_SLOPE, MOST_SLOPE = 0.8, 1.4
Points = dict[int, Row]
"""A measurement by rows or by channels, ascending."""
Series = dict[str, Points]
"""By what is measured: ``powernorm variant=released, fused``."""


def series(rows: Sequence[Row], against: str, fixed: str, value: int) -> Series:
    """The newest training times against rows or channels, where the other has ``value``."""
    found: Series = {}
    for row in newest(rows, SAME_LAYER).values():
        if row["direction"] == BOTH and row[fixed] == str(value):
            words = f"{row['norm']} {row['options']}".strip()
            found.setdefault(f"{words}, {row['provider']}", {})[int(row[against])] = row
    return {name: dict(sorted(points.items())) for name, points in found.items()}


def slope(points: Points) -> float | None:
    """Of the logarithm of time against that of rows; None with fewer than two sizes."""
    kept = {rows: float(row["p50_ms"]) for rows, row in points.items() if rows >= FIRST_ROWS}
    if len(kept) < 2:
        return None
    logs = [math.log(rows) for rows in kept], [math.log(ms) for ms in kept.values()]
    return statistics.linear_regression(*logs).slope


def misses(slopes: dict[str, float | None]) -> Iterator[str]:
    """A line for each series whose time does not grow like the rows, or for a lack of data."""
    if not any(value is not None for value in slopes.values()):
        yield "no growth measured; run python benchmarks/layers.py --growth"
    for name, value in slopes.items():
        if value is not None and not LEAST_SLOPE <= value <= MOST_SLOPE:
            yield f"{name}: slope {value:.2f}, wanted from {LEAST_SLOPE} to {MOST_SLOPE}"


def styles_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the line of each name looks: the same in all panels, and like no other one."""
    return {
        name: {**style(place), "marker": ".", "label": name} for place, name in enumerate(names)
    }


def lines_of(
    rows: Sequence[Row], names: Sequence[str] | None, against: str, fixed: str, value: int
) -> Series:
    """What a panel shows: the fused forms of the norms ``names``, and torch's LayerNorm."""

    def is_shown(name: str, points: Points) -> bool:
        row = next(iter(points.values()))
        fused = row["provider"] == "fused" and (names is None or row["norm"] in names)
        return len(points) > 1 and (fused or name == f"layernorm, {UNIT}")

    found = series(rows, against, fixed, value)
    return {name: points for name, points in found.items() if is_shown(name, points)}


def draw(rows: Sequence[Row], names: Sequence[str] | None, output: Path) -> None:
    """Write the picture, in the format of the ending; ``names`` are norms, None: all."""
    try:
        import matplotlib
    except ImportError as error:
        raise CommandError("no matplotlib, which draws; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    axes = (("rows", "channels", FIXED_CHANNELS), ("channels", "rows", FIXED_ROWS))
    shown = [lines_of(rows, names, *one) for one in axes]
    styles = styles_of(dict.fromkeys(name for lines in shown for name in lines))
    figure, panels = pyplot.subplots(2, 2, figsize=(14, 10), layout="constrained")
    for column, (against, fixed, value) in enumerate(axes):
        for name, points in shown[column].items():
            for place, what in enumerate(("p50_ms", "ratio")):
                heights = [float(point[what]) for point in points.values()]
                panels[place][column].plot(list(points), heights, **styles[name])
        for place, what in enumerate(("ms, forward and backward", "ratio to LayerNorm")):
            panels[place][column].set(
                xscale="log", xlabel=f"{against} ({fixed}: {value:,})", ylabel=what
            )
        panels[0][column].set_yscale("log")
    panels[0][0].legend(
        handles=[Line2D([], [], **style) for style in styles.values()], fontsize="x-small"
    )
    with replacing(output) as stream:
        figure.savefig(stream, format=output.suffix[1:] or "png")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``argv`` is sys.argv without its first word."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--input",
        type=Path,
        default=RESULTS / "layers.csv",
        metavar="FILE",
        help="default: benchmarks/results/layers.csv",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the picture, .png or .svg")
    parser.add_argument("--norms", nargs="+", metavar="NORM", help="to draw (default: all)")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with 1 where a slope is not from {LEAST_SLOPE} to {MOST_SLOPE}",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --check the status is 1 where the time does not grow like the rows."""
    args = parse_args(argv)
    quiet()
    rows = read_rows(args.input, (*SAME_LAYER, "p50_ms", "ratio"))
    against_rows = series(rows, "rows", "channels", FIXED_CHANNELS)
    slopes = {name: slope(points) for name, points in against_rows.items()}
    for name, value in slopes.items():
        if value is not None:
            print(f"{name:75} time ~ rows^{value:.2f}")
    if args.output:
        draw(rows, args.norms, args.output)
    return report(misses(slopes)) if args.check else 0


if __name__ == "__main__":
    run_command(main)
