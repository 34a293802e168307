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

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from measuring.command import plain_parser, quiet, report
from measuring.providers import BOTH, UNIT
from measuring.records import RESULTS, SAME_LAYER, read_rows
from norm_plugin.analysis.figures import style
from norm_plugin.commands.command_line import CommandError, replacing, run_command

PANELS = (("rows", "channels", 512), ("channels", "rows", 4096))
"""What the columns of the picture show: an axis, and what is fixed."""
FIRST_ROWS = 1024
LEAST_SLOPE, MOST_SLOPE = 0.8, 1.4


def series(rows: pd.DataFrame, against: str, fixed: str, value: int) -> dict[str, pd.DataFrame]:
    """The training times of each norm and form by rows or channels, where the other is ``value``.

    The names are such as ``powernorm variant=released, fused``.
    """
    training = rows[(rows["direction"] == BOTH) & (rows[fixed] == value)]
    return {
        f"{norm} {options}".strip() + f", {provider}": points.sort_values(against)
        for (norm, options, provider), points in training.groupby(
            ["norm", "options", "provider"], sort=False
        )
    }


def slope(points: pd.DataFrame) -> float | None:
    """Of the logarithm of time against that of rows; None with fewer than two sizes."""
    points = points[points["rows"] >= FIRST_ROWS]
    if len(points) < 2:
        return None
    rows, ms = (np.log(points[name].to_numpy(float)) for name in ("rows", "p50_ms"))
    return float(np.polyfit(rows, ms, 1)[0])


def misses(slopes: dict[str, float | None]) -> Iterator[str]:
    """A line for each series whose time does not grow like the rows, or for a lack of data."""
    if not any(value is not None for value in slopes.values()):
        yield "no growth measured; run python benchmarks/layers.py --growth"
    for name, value in slopes.items():
        if value is not None and not LEAST_SLOPE <= value <= MOST_SLOPE:
            yield f"{name}: slope {value:.2f}, wanted from {LEAST_SLOPE} to {MOST_SLOPE}"


def lines_of(
    rows: pd.DataFrame, norms: Sequence[str] | None, against: str, fixed: str, value: int
) -> dict[str, pd.DataFrame]:
    """What a panel shows: the fused forms of ``norms``, None for all, and torch's LayerNorm."""
    chosen = rows[(rows["provider"] == "fused") & (rows["norm"].isin(norms or rows["norm"]))]
    unit = rows[
        (rows["provider"] == UNIT) & (rows["norm"] == "layernorm") & (rows["options"] == "")
    ]
    both = series(pd.concat([unit, chosen]), against, fixed, value)
    return {name: points for name, points in both.items() if len(points) > 1}


def draw(rows: pd.DataFrame, norms: Sequence[str] | None, output: Path) -> None:
    """Write the picture, in the format of the ending; ``norms`` are those drawn, None: all."""
    try:
        import matplotlib
    except ImportError as error:
        raise CommandError("no matplotlib, which draws; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [lines_of(rows, norms, *panel) for panel in PANELS]
    names = list(dict.fromkeys(name for lines in shown for name in lines))
    figure, axes = pyplot.subplots(2, 2, figsize=(14, 10), layout="constrained")
    for column, (against, fixed, value) in enumerate(PANELS):
        for name, points in shown[column].items():
            look = {**style(names.index(name)), "marker": ".", "label": name}
            for axis, what in zip(axes[:, column], ("p50_ms", "ratio")):
                axis.plot(points[against], points[what], **look)
        for axis, what in zip(axes[:, column], ("ms, forward and backward", "ratio to LayerNorm")):
            axis.set(xscale="log", xlabel=f"{against} ({fixed}: {value:,})", ylabel=what)
        axes[0, column].set_yscale("log")
    labels = [axis.get_legend_handles_labels() for axis in axes[0]]
    handles = {name: line for lines, names in labels for line, name in zip(lines, names)}
    axes[0, 0].legend(handles=handles.values(), fontsize="x-small")
    with replacing(output) as stream:
        figure.savefig(stream, format=output.suffix[1:] or "png")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --check the status is 1 where the time does not grow like the rows."""
    parser = plain_parser(__doc__)
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
