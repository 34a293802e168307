"""Figures of a report as inline SVG, with the data that they draw."""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from norm_plugin.analysis.comparison import Row
from norm_plugin.analysis.seeds import describe
from norm_plugin.analysis.study import Study

# Okabe and Ito's colors, which the color-blind tell apart and which stand out on black and white;
# their black is left out.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b8a800")
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
INK = "#010203"
"""Stands for the page's own text color, which the theme of the page decides."""
INK_ON_PAPER = "#777777"
"""For an SVG file, which no page tells a color: it stands out on black and on white."""
WIDTH = 6.4
"""Of a drawing, in inches."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it is found, scales, and takes the page's font
    "svg.hashsalt": "norm_plugin",  # equal data draw equal files
    "font.family": "sans-serif",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Figure:
    """A drawing and its data.

    Attributes:
        name: of its files and its anchor in the page.
        title: what it shows, a sentence.
        svg: an ``<svg>`` element for the page, in whose text color it is drawn.
        header: of the data.
        rows: of the data.
    """

    name: str
    title: str
    svg: str
    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    @property
    def data(self) -> str:
        """As CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()

    @property
    def standalone(self) -> str:
        """The drawing as a file of its own, which inherits no color from a page."""
        return self.svg.replace("currentColor", INK_ON_PAPER) + "\n"


def scores_figure(rows: Sequence[Row]) -> Figure:
    """The score of every seed, with mean and interval, a line a setting."""
    metric = rows[0].setting.metric

    def plot(axes: Any) -> None:
        for place, row in enumerate(reversed(rows)):
            color = COLORS[0] if row.difference is None else INK
            scores = row.setting.scores
            axes.plot(scores, [place] * len(scores), "o", color=color, alpha=0.5, markersize=4)
            axes.plot([row.sample.mean], [place], "|", color=color, markersize=16)
            if row.sample.interval:
                axes.plot(row.sample.interval, [place, place], "-", color=color, linewidth=1.5)
        axes.set_yticks(range(len(rows)), [row.setting.name for row in reversed(rows)])
        axes.set_xlabel(metric.title)

    data = [
        (row.setting.norm, row.setting.placement, seed, score)
        for row in rows
        for seed, score in zip(row.setting.seeds, row.setting.scores)
    ]
    return Figure(
        "scores",
        f"{metric.title} of every seed; the bars are the mean and its 95 % interval.",
        draw(plot, height=0.9 + 0.34 * len(rows), name="scores"),
        ("norm", "placement", "seed", "score"),
        data,
    )


def style(place: int) -> dict[str, Any]:
    """How the line with this number is drawn, from 0: 42 are told apart."""
    dash = DASHES[place // len(COLORS) % len(DASHES)]
    return {"color": COLORS[place % len(COLORS)], "linestyle": dash, "linewidth": 1.5}


def speed_figure(study: Study) -> Figure:
    """The score against training time, a point a setting."""
    title = study.baseline.metric.title
    known = [
        (setting, [run["training"]["seconds"] for run in setting.runs])
        for setting in study.settings
        if all(run["training"]["seconds"] for run in setting.runs)
    ]
    points = [
        (setting, float(np.mean(seconds)) / 60, describe(setting.scores).mean)
        for setting, seconds in known
    ]

    def plot(axes: Any) -> None:
        for setting, minutes, score in points:
            place = study.names.index(setting.name)
            look = {"color": COLORS[place % len(COLORS)], "marker": "os^"[place // len(COLORS) % 3]}
            axes.plot([minutes], [score], linestyle="", **look, label=setting.name)
        legend_below(axes)
        axes.set_xlabel("minutes of training")
        axes.set_ylabel(title)

    return Figure(
        "speed",
        f"{title} against the time of training, means over seeds. Times of runs that shared a "
        "machine with other work cannot be compared.",
        draw(plot, height=3.6, name="speed"),
        ("norm", "placement", "minutes", "score"),
        [(setting.norm, setting.placement, *values) for setting, *values in points],
    )


def draw(
    plot: Callable[[Any], None], height: float, name: str, grid: tuple[int, int] | None = None
) -> str:
    """The SVG element that ``plot`` draws on fresh axes, 6.4 inches wide.

    Every id in it begins with ``name``, since a page holds several figures.

    Args:
        grid: rows and columns of small multiples; ``plot`` then gets their axes as an array.
    """
    # Importing fairseq lets the debug lines of all libraries through
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        rows, columns = grid or (1, 1)
        figure, axes = pyplot.subplots(
            rows,
            columns,
            figsize=(WIDTH, height),
            layout="constrained",
            sharex=True,
            sharey="row",
            squeeze=False,
        )
        plot(axes if grid else axes[0, 0])
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\b[dxy]="[^"]*"', _shortened, svg)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    # The drawing takes the width of the page and keeps its proportions.
    svg = re.sub(r'<svg ([^>]*?)width="[^"]+" height="[^"]+"|<svg ', _scaled, svg, count=1)
    return svg.replace(INK, "currentColor")


def legend_below(axes: Any, handles: dict[str, Any] | None = None) -> None:
    """The names of the lines under the axes, in columns. handles: by name; None: all lines."""
    found, names = axes.get_legend_handles_labels()
    lines = handles or dict(zip(names, found))
    axes.figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside lower center",
        ncols=_legend_columns(list(lines)),
        fontsize=8,
    )


def legend_height(names: Sequence[str]) -> float:
    """Inches that ``legend_below`` needs for these names."""
    return 0.2 * math.ceil(len(names) / _legend_columns(names))


def _legend_columns(names: Sequence[str]) -> int:
    """As many as fit side by side; in points, at about 4.3 a letter and 30 for a line's sample."""
    widest = 30 + 4.3 * max(map(len, names), default=0)
    return max(1, min(3, int(WIDTH * 72 / widest)))


def _shortened(match: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point, which no eye tells from a millionth."""
    return re.sub(r"(?<=\d\.\d\d)\d+", "", match.group())


def _scaled(match: re.Match[str]) -> str:
    return f'<svg role="img" width="100%" {match.group(1) or ""}'
