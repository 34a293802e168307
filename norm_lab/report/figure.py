"""A figure: its data, how it is drawn by matplotlib, and the style of all figures."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.study.study import Study
from norm_plugin.io.files import atomic_write, make_folder

# The colors of Okabe and Ito, which color-blind readers can distinguish and which are visible on
# black and on white; without black, and without yellow, which is close to the orange.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
INK = "#010203"
"""Placeholder for the text color of the page."""
INK_ON_PAPER = "#777777"
"""The text color of SVG files: visible on black and on white."""
DECIMALS = re.compile(r"(?<=\d\.\d\d)\d+")
"""What follows the second decimal of a number."""
HOVER = "title:"
"""The prefix of the ``gid`` of an artist whose rest is shown when the pointer is over it."""
WIDTH = 6.4
"""The width of a drawing, in inches."""
SMALL = 10
"""Font size in legends and panels, in points; a phone shows a drawing at about half its size."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text instead of outlines: searchable, in the font of the page
    "svg.hashsalt": "norm_plugin",  # reproducible files
    "pdf.fonttype": 42,  # embed TrueType fonts, as publishers require
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.5,  # two periods of the longest dash, beside a marker
}
MOST_LINES = 6
"""Arms per panel, including the baseline; if there are more, each has a panel of its own."""
OUTLIER = 3
"""An arm that is larger than the next smaller one by this factor has its own scale."""


@dataclass(frozen=True)
class Figure:
    """A drawing by matplotlib, 6.4 inches wide, and its data.

    Attributes:
        name: the name of its files, of its anchor in the page, and the prefix of all ids in the
            SVG, as a page contains several figures.
        title: the caption.
        data: the drawn data.
        plot: draws on the axes, or on an array of axes for several panels.
        height: in inches.
        grid: rows and columns of panels; None for a single panel.
        options: options of matplotlib's ``subplots``.
        note: explains the drawing beside its caption; a page has the notes of a section once.
    """

    name: str
    title: str
    data: pd.DataFrame
    plot: Callable[[Any], None]
    height: float
    grid: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def csv(self) -> str:
        """Return the data as CSV."""
        return str(self.data.to_csv(index=False, float_format="%.10g"))

    @cached_property
    def svg(self) -> str:
        """Return an SVG element for a page, in the text color and the width of the page."""
        text = self._render("svg", transparent=True, metadata={"Date": None}).decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = re.sub(rf'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", text)
        # coordinates in hundredths of a point, for smaller files
        text = re.sub(r'\b[dxy]="[^"]*"', lambda found: DECIMALS.sub("", found[0]), text)
        text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        size = r'<svg ([^>]*?)width="[^"]+" height="[^"]+"|<svg '
        text = re.sub(size, r'<svg role="img" width="100%" \1', text, count=1)
        return text.replace(INK, "currentColor")

    @property
    def standalone(self) -> str:
        """Return an SVG file, with its own text color."""
        return self.svg.replace("currentColor", INK_ON_PAPER) + "\n"

    @property
    def pdf(self) -> bytes:
        """Return a PDF file."""
        return self._render("pdf", metadata={"CreationDate": None})

    def _render(self, form: str, **options: Any) -> bytes:
        # importing fairseq lowers the level of the root logger
        for library in ("matplotlib", "fontTools"):
            logging.getLogger(library).setLevel(logging.WARNING)
        import matplotlib.figure

        with matplotlib.rc_context(STYLE):  # without pyplot, which a notebook may be using
            rows, columns = self.grid or (1, 1)
            whole = matplotlib.figure.Figure((WIDTH, self.height), layout="constrained")
            axes = whole.subplots(rows, columns, squeeze=False, **self.options)
            self.plot(axes if self.grid else axes[0, 0])
            _take_dollars_literally(whole)
            file = io.BytesIO()
            whole.savefig(file, format=form, **options)
        return file.getvalue()


def _take_dollars_literally(whole: Any) -> None:
    """Draw names as they are, and as formulas only the numbers of axes, such as powers of ten."""
    import matplotlib.text
    import matplotlib.ticker

    of_numbers = (matplotlib.ticker.ScalarFormatter, matplotlib.ticker.LogFormatter)
    numbers = set()
    for axis in (axis for axes in whole.axes for axis in (axes.xaxis, axes.yaxis)):
        for of in ("major", "minor"):
            labels, formatter = axis.get_ticklabels(which=of), getattr(axis, of).formatter
            if isinstance(formatter, of_numbers):
                numbers |= set(labels)
    for text in set(whole.findobj(matplotlib.text.Text)) - numbers:
        text.set_parse_math(False)


def style(place: int) -> dict[str, Any]:
    """Return the color and dashes of line number ``place``, from 0: 36 different styles.

    The first six differ from each other in both.
    """
    turn, color = divmod(place, len(COLORS))
    dash = DASHES[(place + turn) % len(DASHES)]
    return {"color": COLORS[color], "linestyle": dash, "linewidth": 1.5}


def styles_by_arm(study: Study) -> dict[str, dict[str, Any]]:
    """Return the color and dashes of each arm, the same in all figures of a page.

    The main baseline has the text color. Arms that differ in their placement alone are alike.
    """
    shorts = study.short_names
    names = dict.fromkeys(shorts[arm] for arm in study.names)
    others = [name for name in names if name != shorts[study.baseline]]
    styles = {name: style(place) for place, name in enumerate(others)}
    main = {"color": INK, "linestyle": "-", "linewidth": 1.5}
    return {arm: dict(styles.get(shorts[arm], main)) for arm in study.names}


def repeats(styles: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return how many arms before each one have its color, to tell them apart on the same axes."""
    colors = [line_style["color"] for line_style in styles.values()]
    return {arm: colors[:place].count(colors[place]) for place, arm in enumerate(styles)}


def legend_below(axes: Any, handles: Mapping[str, Any] | None = None) -> None:
    """Put a legend with columns below the axes; ``handles`` by name, None for all lines."""
    # not get_legend_handles_labels(), which leaves out every name that begins with _; a line that
    # was given no name has one of these
    lines = ((line.get_label(), line) for line in axes.lines)
    named = {name: line for name, line in lines if not name.startswith("_child")}
    by_name = named if handles is None else handles
    axes.figure.legend(
        by_name.values(),
        by_name.keys(),
        loc="outside lower center",
        ncols=_legend_columns(list(by_name)),
        fontsize=SMALL,
    )


def legend_height(names: Sequence[str]) -> float:
    """Return the height of ``legend_below`` for these names, in inches."""
    return 0.1 + 0.2 * math.ceil(len(names) / _legend_columns(names))


def _legend_columns(names: Sequence[str]) -> int:
    """Return the number of columns that fit, with about 5 points per letter and 50 for the line."""
    widest = 50 + 5 * max(map(len, names), default=0)
    return max(1, min(3, int(WIDTH * 72 / widest)))


def outliers(sizes: Mapping[str, float]) -> list[str]:
    """Return the arms that need their own scale, because they would flatten the others.

    In the larger half of the arms, sorted by size, these are all arms from the first one that is
    :data:`OUTLIER` times as large as the previous one.
    """
    ranked = sorted(sizes, key=lambda arm: sizes[arm])
    for place in range(max(2, (len(ranked) + 1) // 2), len(ranked)):
        if sizes[ranked[place]] > OUTLIER * sizes[ranked[place - 1]]:
            return ranked[place:]
    return []


Registered = Callable[[Study], Figure | None]
"""A function that draws a figure of a study, or returns None if the study has no data for it."""
FIGURES: dict[str, tuple[str, Registered]] = {}
"""The section of the page and the function of each figure, by its name."""
SECTIONS = ("verdicts", "training", "speed", "statistics")
"""The sections of the page that have figures, in order."""


def figure(name: str, section: str) -> Callable[[Registered], Registered]:
    """Decorator that adds a figure to one of the :data:`SECTIONS`."""

    def register(drawing: Registered) -> Registered:
        FIGURES[name] = (section, drawing)
        return drawing

    return register


def baselines_of(study: Study) -> str:
    """Return the baselines, as part of a sentence."""
    return " or ".join(dict.fromkeys(study.shown(baseline) for _, baseline in study.pairs))


def write_files(contents: Mapping[str, str | bytes], out: Path) -> list[Path]:
    """Write files by name into a folder."""
    make_folder(out, "--out")
    for name, content in contents.items():
        with atomic_write(out / name) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    return [out / name for name in contents]


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """Return the SVG and CSV files of figures, by name."""
    files: dict[str, str] = {}
    for drawn in figures:
        files |= {f"{drawn.name}.svg": drawn.standalone, f"{drawn.name}.csv": drawn.csv}
    return files
