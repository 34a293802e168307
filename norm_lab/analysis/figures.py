"""The figures of a report, with their data.

A figure is a function of a study with the decorator :func:`figure`.
"""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from norm_lab.analysis.records import (
    RECORDED,
    Recorded,
    drawn_places,
    recorded,
    short_place,
    short_value,
    statistics_of,
)
from norm_lab.analysis.stats import (
    CONFIDENCE,
    Verdict,
    compare_arms,
    describe,
    outcome_values,
    split_ratio,
)
from norm_lab.analysis.study import Study, arm_name
from norm_lab.experiments.results import RUN_KEY

# Okabe and Ito's colors, which the color-blind can distinguish and which are visible on black and
# on white, without black, and without yellow, which is close to the orange.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
INK = "#010203"
"""Placeholder for the text color of the page."""
INK_ON_PAPER = "#777777"
"""The text color of SVG files: visible on black and on white."""
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
"""Arms in a panel, including the baseline; if there are more, each has its own panel."""
FEWEST_POINTS = 3
"""Points that a run needs for a curve."""
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
    """

    name: str
    title: str
    data: pd.DataFrame
    plot: Callable[[Any], None]
    height: float
    grid: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def csv(self) -> str:
        """The data as CSV."""
        return str(self.data.to_csv(index=False, float_format="%.10g"))

    @cached_property
    def svg(self) -> str:
        """An SVG element for a page, in the text color and the width of the page."""
        text = self._render("svg", transparent=True, metadata={"Date": None}).decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = re.sub(r'\b[dxy]="[^"]*"', _shortened, text)
        text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        text = re.sub(r'<svg ([^>]*?)width="[^"]+" height="[^"]+"|<svg ', _scaled, text, count=1)
        return text.replace(INK, "currentColor")

    @property
    def standalone(self) -> str:
        """An SVG file, with its own text color."""
        return self.svg.replace("currentColor", INK_ON_PAPER) + "\n"

    @property
    def pdf(self) -> bytes:
        """A PDF file."""
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
            file = io.BytesIO()
            whole.savefig(file, format=form, **options)
        return file.getvalue()


def style(place: int) -> dict[str, Any]:
    """The color and dashes of line number ``place``, from 0: 36 different styles.

    The first six differ from each other in both.
    """
    turn, color = divmod(place, len(COLORS))
    dash = DASHES[(place + turn) % len(DASHES)]
    return {"color": COLORS[color], "linestyle": dash, "linewidth": 1.5}


def legend_below(axes: Any, handles: Mapping[str, Any] | None = None) -> None:
    """Put a legend with columns below the axes; ``handles`` by name, None for all lines."""
    lines, names = axes.get_legend_handles_labels()
    by_name = dict(zip(names, lines)) if handles is None else handles
    axes.figure.legend(
        by_name.values(),
        by_name.keys(),
        loc="outside lower center",
        ncols=_legend_columns(list(by_name)),
        fontsize=SMALL,
    )


def legend_height(names: Sequence[str]) -> float:
    """The height of ``legend_below`` for these names, in inches."""
    return 0.1 + 0.2 * math.ceil(len(names) / _legend_columns(names))


def _legend_columns(names: Sequence[str]) -> int:
    """The number of columns that fit, with about 5 points per letter and 50 for the line."""
    widest = 50 + 5 * max(map(len, names), default=0)
    return max(1, min(3, int(WIDTH * 72 / widest)))


def _shortened(match: re.Match[str]) -> str:
    """A coordinate rounded to a hundredth of a point, for smaller files."""
    return re.sub(r"(?<=\d\.\d\d)\d+", "", match.group())


def _scaled(match: re.Match[str]) -> str:
    return f'<svg role="img" width="100%" {match.group(1) or ""}'


def outliers(sizes: Mapping[str, float]) -> list[str]:
    """The arms that need their own scale, as their distance from the center flattens the others.

    In the larger half of the arms, sorted by size, these are all from the first one on that is
    :data:`OUTLIER` times as large as the one before it.
    """
    ranked = sorted(sizes, key=lambda arm: sizes[arm])
    for place in range(max(2, (len(ranked) + 1) // 2), len(ranked)):
        if sizes[ranked[place]] > OUTLIER * sizes[ranked[place - 1]]:
            return ranked[place:]
    return []


Registered = Callable[[Study], Figure | None]
"""Returns None if the study has no data for the figure."""
FIGURES: dict[str, tuple[str, Registered]] = {}
"""The section of the page and the function of each figure, by its name, in order of the page."""


def figure(name: str, section: str) -> Callable[[Registered], Registered]:
    """Decorator that adds a figure to a section of the report."""

    def register(drawing: Registered) -> Registered:
        FIGURES[name] = (section, drawing)
        return drawing

    return register


def forest_plot(
    name: str, title: str, data: pd.DataFrame, rows: pd.DataFrame, axis: str, zero: bool = False
) -> Figure:
    """A forest plot: for each arm a row with its seeds as dots, its mean and interval.

    Arms are under the heading of their group. Outliers are in a panel on the right with its own
    scale.

    Args:
        rows: columns ``arm``, ``label``, ``group``, ``mean``, ``low``, ``high``; ``values``, those
            of the seeds; and ``filled``, whether the mark is filled.
        axis: the label of the axis.
        zero: draw a line at 0, and measure outliers from 0 instead of the median.
    """
    center = 0.0 if zero else float(rows["mean"].median())
    ends = rows[["mean", "low", "high"]].sub(center).abs().max(axis="columns")
    rows = rows.assign(out=rows["arm"].isin(outliers(dict(zip(rows["arm"], ends)))))
    headed = rows["group"].nunique() > 1
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for group, of_group in rows.groupby("group", sort=False):
        lines += [(str(group), None)] if headed else []
        for row in of_group.to_dict("records"):
            lines.append((short_name(row["label"], str(group)), row))

    def plot(grid: Any) -> None:
        left, right = grid[0, 0], grid[0, -1]
        left.set_yticks(range(len(lines)), [text for text, _ in lines])
        left.set_ylim(len(lines) - 0.5, -0.5)
        for place, (tick, (_, row)) in enumerate(zip(left.get_yticklabels(), lines)):
            if row is None:
                tick.set_fontweight("bold")
            else:
                draw_row(right if row["out"] else left, place, row)
        for axes in grid.flat:
            axes.tick_params(axis="y", length=0, labelsize=SMALL)
            axes.tick_params(axis="x", labelsize=SMALL)
        if zero:
            left.axvline(0, color=INK, linewidth=0.8, alpha=0.6)
        left.set_xlabel(axis)
        if right is not left:
            right.spines["left"].set_linestyle((0, (1, 3)))
            right.set_xlabel("own scale")
            right.locator_params(axis="x", nbins=3)

    ratios = [3, 1] if rows["out"].any() else [1]
    height = 0.7 + 0.26 * len(lines)
    options = {"sharey": True, "width_ratios": ratios}
    return Figure(name, title, data, plot, height, (1, len(ratios)), options)


def draw_row(axes: Any, place: int, row: Mapping[str, Any]) -> None:
    """Draw a row of a forest plot; see :func:`forest_plot` for ``row``."""
    dots = {"color": COLORS[5], "alpha": 0.8, "markersize": 3.5, "markeredgewidth": 0}
    mark = {"color": INK, "markersize": 6, "markeredgecolor": INK}
    face = {"markerfacecolor": INK if row["filled"] else "none"}
    axes.plot([row["low"], row["high"]], [place, place], "-", color=INK, linewidth=1.2)
    axes.plot([row["mean"]], [place], "D", **mark, **face)
    axes.plot(row["values"], [place] * len(row["values"]), "o", **dots)


def short_name(arm: str, placement: str) -> str:
    """The name of an arm without its placement."""
    return arm.removesuffix(f", {placement}")


@figure("differences", "verdicts")
def differences(study: Study) -> Figure | None:
    """A forest plot of the difference of every arm from its baseline."""
    table = compare_arms(study.runs, study.pairs, primary=study.primary)
    table = table[table["difference"].notna()]
    if table.empty:
        return None
    placements = study.placements
    rows = table[["arm"]].assign(
        group=table["arm"].map(placements),
        label=[_difference_label(row, placements) for row in table.to_dict("records")],
        mean=table["difference"],
        low=table["difference_low"],
        high=table["difference_high"],
        values=table["by_seed"],
        filled=table["verdict"].isin([Verdict.BETTER, Verdict.WORSE]),
    )
    rows = study.by_placement(rows)
    metric = study.metric
    better = "right" if metric.higher_is_better else "left"
    return forest_plot(
        "differences",
        f"{metric.title}: difference to {_baselines(study)}, with its 95 % interval, not corrected "
        f"for the number of comparisons; better is on the {better}. A dot is a seed. A mark is "
        "filled where the verdict, after correction, is better or worse.",
        rows.drop(columns=["values", "label"]),
        rows,
        f"difference in {metric.title}",
        zero=True,
    )


def _difference_label(row: Mapping[str, Any], placements: Mapping[str, str]) -> str:
    """The label of a row: the arm, and the baseline if that has another placement."""
    arm, baseline = row["arm"], row["baseline"]
    if placements[arm] == placements[baseline]:
        return str(arm)
    return f"{short_name(arm, placements[arm])} minus\n{baseline}"


@figure("scores", "verdicts")
def scores(study: Study) -> Figure:
    """A forest plot of the scores of every arm."""
    table = compare_arms(study.runs, [(arm, arm) for arm in study.arms])
    values = study.runs.groupby("arm")["score"].agg(tuple)
    rows = table[["arm", "mean", "low", "high"]].assign(
        group=table["arm"].map(study.placements),
        label=table["arm"],
        values=table["arm"].map(values),
        filled=table["arm"].isin({baseline for _, baseline in study.pairs}),
    )
    return forest_plot(
        "scores",
        f"{study.metric.title} of every seed, one dot each, with the mean and its 95 % interval. "
        "The marks of baselines are filled.",
        study.runs[["norm", "placement", "seed", "score"]],
        rows,
        study.metric.title,
    )


def _baselines(study: Study) -> str:
    """The baselines, as part of a sentence."""
    return " or ".join(dict.fromkeys(baseline for _, baseline in study.pairs))


@dataclass(frozen=True)
class Panel:
    """Arms that are drawn on the same axes; ``names`` are those in the legend, by arm."""

    title: str
    names: Mapping[str, str]
    own_scale: bool = False


def panels(groups: Mapping[str, Mapping[str, str]], out: Sequence[str] = ()) -> list[Panel]:
    """Divide arms into panels: one for each group, or one for each arm if there are too many.

    A group has the short names of its arms, without baselines. ``out`` are the arms with their own
    scale.
    """
    crowded = any(len(set(names) - set(out)) >= MOST_LINES for names in groups.values())
    together, apart = [], []
    for group, names in groups.items():
        titles = {
            arm: name if len(groups) == 1 else f"{name}, {group}" for arm, name in names.items()
        }
        inside = {arm: name for arm, name in names.items() if arm not in out}
        if crowded:
            together += [Panel(titles[arm], {arm: name}) for arm, name in inside.items()]
        elif inside:
            together.append(Panel(group, inside))
        apart += [Panel(titles[arm], {arm: names[arm]}, True) for arm in names if arm in out]
    return together + apart


def curves_in_panels(
    name: str,
    title: str,
    data: pd.DataFrame,
    lines: pd.DataFrame,
    shown: Sequence[Panel],
    labels: tuple[str, str],
    baseline: Callable[[Panel], pd.DataFrame] | None = None,
    more: Callable[[Any, Panel], None] | None = None,
    settled: float = 0,
    log: bool = False,
) -> Figure:
    """Lines with bands, in panels with a common scale, except those with their own.

    Args:
        lines: columns ``arm``, ``x``, ``mean``, ``low`` and ``high``.
        baseline: gives the line of the baseline in a panel, columns ``x`` and ``mean``.
        settled: the scale ignores points before this share of the x axis.
        log: use a logarithmic x axis.
    """
    alone = all(len(panel.names) == 1 for panel in shown)
    columns = min(len(shown), 3 if alone else 2)
    rows = math.ceil(len(shown) / columns)
    names = dict.fromkeys(name for panel in shown for name in panel.names.values())
    looks = {name: style(0 if alone and rows > 1 else place) for place, name in enumerate(names)}
    drawn = []
    for panel in shown:
        of_panel = [lines[lines["arm"].isin(panel.names)]]
        of_panel += [] if baseline is None else [baseline(panel)]
        both = pd.concat(of_panel)
        late = both[both["x"] >= settled * both["x"].max()]
        drawn.append(late[["mean", "low", "high"]].stack())
    together = [ends for ends, panel in zip(drawn, shown) if not panel.own_scale]

    def plot(grid: Any) -> None:
        handles = {}
        for axes, panel, ends in zip(grid.flat, shown, drawn):
            if baseline is not None:
                line = baseline(panel)
                (handles["baseline"],) = axes.plot(line["x"], line["mean"], **BASELINE_LINE)
            for arm, short in panel.names.items():
                line = lines[lines["arm"] == arm]
                (mean,) = axes.plot(line["x"], line["mean"], **looks[short])
                band = {"color": looks[short]["color"], "alpha": 0.2, "linewidth": 0}
                axes.fill_between(line["x"], line["low"], line["high"], **band)
                if len(panel.names) > 1 or len(shown) == 1:
                    handles[short] = mean
            if log:
                axes.set_xscale("log")
            else:
                axes.locator_params(axis="x", nbins=4)
            if more is not None:
                more(axes, panel)
            if len(shown) > 1:
                title = f"{panel.title} (own scale)" if panel.own_scale else panel.title
                axes.set_title(textwrap.fill(title, 60 // columns), fontsize=SMALL)
            scaled = ends if panel.own_scale else pd.concat(together)
            if not scaled.empty:
                pad = 0.05 * (scaled.max() - scaled.min()) or 0.05
                axes.set_ylim(scaled.min() - pad, scaled.max() + pad)
            axes.tick_params(labelsize=SMALL - 1.5)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for axes in grid.flat[max(0, len(shown) - columns) : len(shown)]:
            axes.set_xlabel(labels[0], fontsize=SMALL)
        grid[0, 0].figure.supylabel(labels[1], fontsize=SMALL)
        legend_below(grid[0, 0], handles)

    height = 3.2 if rows == 1 else 0.5 + (1.5 if columns == 3 else 2.2) * rows
    height += legend_height(list(names))
    return Figure(name, title, data, plot, height, (rows, columns))


def interval_of_means(
    points: pd.DataFrame, by: Sequence[str], value: str, test_to_train: float = 0.0
) -> pd.DataFrame:
    """The mean of a value and its band: the 95 % interval, or the range for two seeds.

    Args:
        points: one row per seed and group; the column ``x`` is averaged too.
        test_to_train: see :func:`~norm_lab.analysis.stats.compare`.

    Returns:
        the columns of ``by``, ``x``, ``mean``, ``low``, ``high`` and ``seeds``; one seed has no
        band.
    """
    of_value = points.groupby(list(by), sort=False)
    table = of_value.agg(
        x=("x", "mean"),
        mean=(value, "mean"),
        low=(value, "min"),
        high=(value, "max"),
        error=(value, "sem"),
        seeds=(value, "size"),
    ).reset_index()
    quantile = student.ppf((1 + CONFIDENCE) / 2, table["seeds"] - 1)
    quantile = quantile * np.sqrt(1 + table["seeds"] * test_to_train)
    for end, sign in (("low", -1), ("high", 1)):
        ends = table["mean"] + sign * quantile * table["error"]
        table[end] = table[end].where(table["seeds"] == 2, ends)
    return table.drop(columns="error")


POINT = ["seed", "epoch", "number"]
"""Columns that match the points of different seeds. If each seed has its own split, epochs differ
in length, so the updates are averaged too."""


def curve_points(study: Study, kind: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The finite losses of runs of a study, in the subset that is logged most often.

    Args:
        runs: those with a result, or the failures.

    Returns:
        columns ``arm``, ``seed``, ``epoch``, ``number`` (of the point in its epoch), ``x`` (the
        number of updates), ``loss``, and of failures ``state``.
    """
    runs = runs.filter(items=["arm", *RUN_KEY, "state"])
    curves = study.curves[study.curves["loss"].notna()]
    logged = [curves[curves["subset"] == subset] for subset in SUBSETS[kind]]
    points = runs.merge(next((some for some in logged if len(some)), logged[0]), on=RUN_KEY)
    points["number"] = points.groupby([*RUN_KEY, "epoch"]).cumcount()
    return points.rename(columns={"updates": "x"})


def mean_curves(points: pd.DataFrame, test_to_train: float = 0.0) -> pd.DataFrame:
    """The mean loss of each arm at the points that all its seeds have; see interval_of_means."""
    lines = interval_of_means(points, ["arm", "epoch", "number"], "loss", test_to_train)
    return lines[lines["seeds"] == lines["arm"].map(points.groupby("arm")["seed"].nunique())]


def curve_differences(
    points: pd.DataFrame, pairs: Sequence[tuple[str, str]], test_to_train: float = 0.0
) -> pd.DataFrame:
    """The mean over seeds of the difference between the loss and that of the baseline."""
    tables = [points.iloc[:0]]
    for arm, baseline in pairs:
        if arm != baseline:
            ours, theirs = (points[points["arm"] == name] for name in (arm, baseline))
            both = ours.merge(theirs[[*POINT, "loss"]], on=POINT, suffixes=("", "_of_baseline"))
            tables.append(both.assign(loss=both["loss"] - both["loss_of_baseline"]))
    return mean_curves(pd.concat(tables, ignore_index=True), test_to_train)


BASELINE_LINE = {"color": INK, "linewidth": 1.2, "alpha": 0.7}
BAND = "The band is the 95 % interval of the mean at each point, and of two seeds, both of them."
SETTLED = 0.1
"""The scale ignores losses before this share of the updates, as these are high."""
EARLY = "In the first tenth of the updates, a line may leave its panel."
SUBSETS = {"validation": ["valid"], "training": ["train_inner", "train"]}
"""The subsets of the curves of each loss; of those for training, the first has more points."""


def _panels(study: Study, points: pd.DataFrame) -> list[Panel]:
    """The panels for both the differences and the losses."""
    differences = curve_differences(points, study.pairs, split_ratio(study.runs))
    last = differences[differences["x"] >= differences["x"].max() / 2]
    sizes = last["mean"].abs().groupby(last["arm"]).max()
    placements, baselines = study.placements, dict(study.pairs)
    groups: dict[str, dict[str, str]] = {placement: {} for placement in placements.values()}
    for arm, placement in placements.items():
        if arm not in {*baselines.values(), *study.same}:
            groups[placement][arm] = short_name(arm, placement)
    return panels(groups, outliers(sizes.to_dict()))


def loss_curves(study: Study, name: str, kind: str, difference: bool) -> Figure | None:
    """The loss over updates, or its difference to the baseline's with the same seed.

    A run that failed or diverged is a thin line that ends in a cross; it has no difference.
    """
    points, ratio = curve_points(study, kind, study.runs), split_ratio(study.runs)
    if difference:
        lines = curve_differences(points, study.pairs, ratio)
    else:
        lines = mean_curves(points, ratio)
    lines = lines[lines.groupby("arm")["x"].transform("size") >= FEWEST_POINTS]
    failures = study.failures.iloc[:0] if difference else study.failures
    failed = curve_points(study, kind, failures)[["arm", "seed", "state", "x", "loss"]]
    shown = _panels(study, points) or [Panel("", {study.baseline: study.baseline})]
    shown = [panel for panel in shown if set(panel.names) & {*lines["arm"], *failed["arm"]}]
    if not shown:
        return None
    baselines = dict(study.pairs)

    def of_baseline(panel: Panel) -> pd.DataFrame:
        if difference:
            return pd.DataFrame({"x": [0, lines["x"].max()], "mean": 0.0})
        name = next((baselines[arm] for arm in panel.names if arm in baselines), study.baseline)
        return lines[lines["arm"] == name]

    def of_failed(axes: Any, panel: Panel) -> None:
        for (arm, _), line in failed.groupby(["arm", "seed"], sort=False):
            if arm in panel.names or (arm == study.baseline and panel is shown[0]):
                look = {"color": INK, "linewidth": 0.6, "marker": "x", "markevery": [-1]}
                axes.plot(line["x"], line["loss"], **look)
                seed, state = line[["seed", "state"]].iloc[-1]
                end = tuple(line[["x", "loss"]].iloc[-1])
                axes.annotate(f" seed {seed} {state}", end, fontsize=SMALL - 2)

    label = f"{kind} loss, {study.metric.loss_unit}"
    if difference:
        which = f" minus that of {_baselines(study)} with the same seed; below 0 is better"
        label, data = f"difference in {label}", lines
    else:
        which = ": mean over seeds"
        data = pd.concat([lines, failed.rename(columns={"loss": "mean"})], ignore_index=True)
    title = f"{kind.capitalize()} loss{which}. {BAND} {EARLY}"
    if len(failed):
        title += " A cross marks the last loss of a run that failed or diverged."
    return curves_in_panels(
        name,
        title,
        data.rename(columns={"x": "updates"}),
        lines,
        shown,
        ("updates", label),
        baseline=of_baseline,
        more=of_failed,
        settled=SETTLED,
    )


for name, kind in (("valid", "validation"), ("train", "training")):
    for end in ("difference", "loss"):
        drawing = partial(
            loss_curves, name=f"{name}-{end}", kind=kind, difference=end == "difference"
        )
        figure(f"{name}-{end}", "training")(drawing)


@figure("speed", "speed")
def speed(study: Study) -> Figure | None:
    """The score against training time, one point per arm; None if times are not comparable."""
    if not study.times_comparable:
        return None
    title = study.metric.title
    arms = study.runs.groupby("arm", sort=False)
    points = arms[["norm", "placement"]].first()
    points["minutes"] = arms["training.seconds"].mean(skipna=False) / 60
    points["score"] = arms["score"].mean()
    points = points.dropna(subset="minutes")

    def plot(axes: Any) -> None:
        for arm, minutes, score in points[["minutes", "score"]].itertuples():
            place = study.names.index(arm)
            look = {"color": COLORS[place % len(COLORS)], "marker": "os^"[place // len(COLORS) % 3]}
            axes.plot([minutes], [score], linestyle="", **look, label=arm)
        legend_below(axes)
        axes.set(xlabel="minutes of training", ylabel=title)

    return Figure(
        "speed",
        f"{title} against the time of training, means over seeds.",
        points.reset_index(drop=True),
        plot,
        height=3.6,
    )


LOGARITHMIC = 20
"""A row of panels has a logarithmic axis if its values span more than this factor."""


def small_multiples(study: Study, name: str, what: Recorded) -> Figure | None:
    """Recorded statistics: a row of panels for each value, a column for each of up to four places.

    A line is the mean over the seeds of an arm, at the updates that all its records have. More than
    six arms need more rows, each with the baseline. The figures of the PowerNorm paper show the
    encoder; the norm of the paper is its first one.
    """
    values = recorded(study.runs, what)
    places = drawn_places(values, what)
    values = values[values["place"].isin(places)]
    records = values.attrs["records"]
    means = values.groupby(["arm", "value", "place", "update"], sort=False)["number"]
    lines = means.agg(["mean", "size"]).reset_index()
    lines = lines[lines["size"] == lines["arm"].map(records)]
    if lines.empty:
        return None
    shown = [value for value in what.values if value in set(lines["value"])]
    arms = [arm for arm in study.arms if arm in set(lines["arm"])]
    first = [arm for arm in arms if arm == study.baseline]
    others, step = arms[len(first) :], MOST_LINES - len(first)
    groups = [first + others[at : at + step] for at in range(0, max(1, len(others)), step)]
    rows = [(value, group) for value in shown for group in groups]
    looks = {arm: {**style(place), "linewidth": 1} for place, arm in enumerate(arms)}

    def plot(grid: Any) -> None:
        handles = {}
        for (value, group), panels_of_row in zip(rows, grid):
            of_row = lines[(lines["value"] == value) & lines["arm"].isin(group)]
            for (arm, place), line in of_row.groupby(["arm", "place"], sort=False):
                line = line.sort_values("update")
                axes = panels_of_row[places.index(place)]
                (handles[arm],) = axes.plot(line["update"], line["mean"], **looks[arm])
            least, largest = of_row["mean"].min(), of_row["mean"].max()
            if 0 < least < largest / LOGARITHMIC:
                panels_of_row[0].set_yscale("log")
            panels_of_row[0].set_ylabel(short_value(value), fontsize=SMALL - 1.5)
        for place, top, bottom in zip(places, grid[0], grid[-1]):
            top.set_title(short_place(place), fontsize=SMALL - 1)
            bottom.set_xlabel("updates", fontsize=SMALL - 1)
        for axes in grid.flat:
            axes.tick_params(labelsize=SMALL - 2)
            axes.minorticks_off()  # for smaller files
        legend_below(grid[0, 0], {arm: handles[arm] for arm in arms if arm in handles})

    height = 0.5 + 1.35 * len(rows) + legend_height(arms)
    ordered = lines.assign(
        arm=pd.Categorical(lines["arm"], arms), value=pd.Categorical(lines["value"], shown)
    )
    data = ordered.pivot(index=["arm", "value", "update"], columns="place", values="mean")
    data = data.reindex(columns=places).map(lambda number: float(f"{number:.4g}"))
    data = data.sort_index().reset_index()
    inside = bool(what.stack) and all(place.startswith(what.stack) for place in places)
    source = f" Compare {what.source}." if what.source and inside else ""
    text = f"{what.title}: means over seeds, at up to four places.{source}"
    options = {"sharex": True, "sharey": "row"}
    return Figure(name, text, data, plot, height, (len(rows), len(places)), options)


for name, what in RECORDED.items():
    figure(name, "statistics")(partial(small_multiples, name=name, what=what))


@figure("spectrum", "statistics")
def spectrum(study: Study) -> Figure | None:
    """The singular values of the embeddings: a line for each arm and side, the mean over seeds."""
    seeds: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for run in study.runs.to_dict("records"):
        for entry in (statistics_of(run) or {}).get("spectra", []):
            values = np.array(entry["values"])
            seeds.setdefault((run["arm"], entry["side"]), []).append(values / values[0])
    if not seeds:
        return None
    curves, tables = [], []
    for (arm, side), of_seeds in seeds.items():
        mean, look = np.mean(of_seeds, axis=0), style(study.names.index(arm))
        if side == "decoder":  # same color as the encoder
            look["linewidth"] = 0.8
        curves.append((arm if side == "shared" else f"{arm}, {side}", mean, look))
        index, text = range(1, len(mean) + 1), map("{:.5g}".format, mean)
        tables.append(pd.DataFrame({"arm": arm, "side": side, "index": index, "normalized": text}))
    title = "Singular values of the embeddings, divided by the largest: mean over seeds."
    if study.metric.keeps_texts:
        title += " Compare the PowerNorm paper, Figure 6."
    return spectrum_figure(title, pd.concat(tables), curves)


def spectrum_figure(
    title: str, data: pd.DataFrame, curves: Sequence[tuple[str, Any, dict[str, Any]]]
) -> Figure:
    """Singular values over their index; ``curves`` have a label, the values and a style each."""

    def plot(axes: Any) -> None:
        for label, values, look in curves:
            axes.plot(np.arange(1, len(values) + 1) / len(values), values, **look, label=label)
        axes.set(xlabel="index, as a share of all singular values")
        axes.set(ylabel="singular value / largest", yscale="log")
        legend_below(axes)

    height = 3.4 + legend_height([label for label, *_ in curves])
    return Figure("spectrum", title, data, plot, height)


@dataclass(frozen=True)
class Against:
    """A number that the arms of a study may vary, for the x axis of a figure.

    Attributes:
        text: the label of the axis.
        keys: settings of the model; the first of them that varies.
        otherwise: the column of runs that do not set it.
        source: the figure of a paper with the same axis.
    """

    text: str
    keys: tuple[str, ...]
    otherwise: str = ""
    source: str = ""

    def column(self, runs: pd.DataFrame) -> pd.Series | None:
        """The number of each run; None if it does not vary."""
        for key in self.keys:
            column = f"settings.model.{key}"
            if column in runs and runs[column].nunique(dropna=False) > 1:
                given: pd.Series = runs[column]
                return given.fillna(runs[self.otherwise]) if self.otherwise in runs else given
        return None

    def without(self, label: str) -> str:
        """The label of an arm without the number: ``batchnorm`` of ``batchnorm-stat-tokens-9``."""
        names = "|".join(key.removeprefix("norm_").replace("_", "-") for key in self.keys)
        return re.sub(rf"-({names})-\d+\b", "", label)


AGAINST = {
    "stat-tokens": Against(
        "tokens of the batch statistics",
        ("norm_stat_tokens",),
        "settings.dataset.max_tokens",
        "the PowerNorm paper, Figure 5",
    ),
    "depth": Against("layers", ("decoder_layers", "encoder_layers")),
}


def score_against(study: Study, name: str, against: Against) -> Figure | None:
    """The score against a number that arms vary, a line for each family of arms with several."""
    numbers = against.column(study.runs)
    if numbers is None:
        return None
    rows, scores = [], outcome_values(study.runs)
    for (arm, placement), of_arm in study.runs.groupby(["arm", "placement"], sort=False):
        values = scores[of_arm.index].dropna().tolist()
        if not values:
            continue
        sample = describe(values, split_ratio(of_arm))
        family = arm_name(against.without(short_name(arm, placement)), placement)
        number = numbers[of_arm.index[0]]
        rows.append((family, number, sample.count, sample.mean, *sample.interval))
    data = pd.DataFrame(rows, columns=["arm", "value", "seeds", "mean", "low", "high"])
    data = data[data["value"].notna() & data["arm"].duplicated(keep=False)].astype({"value": int})
    if data.empty:
        return None
    families = list(dict.fromkeys(data["arm"]))
    data = pd.concat(data[data["arm"] == family].sort_values("value") for family in families)
    values = sorted(data["value"].unique())

    def plot(axes: Any) -> None:
        for place, family in enumerate(families):
            line, look = data[data["arm"] == family], style(place)
            axes.plot(line["value"], line["mean"], "o", **look, label=family)
            for at, low, high in line[["value", "low", "high"]].dropna().itertuples(index=False):
                axes.plot([at, at], [low, high], color=look["color"], linewidth=1)
        axes.set(xscale="log", xlabel=against.text, ylabel=study.metric.title)
        axes.set_xticks(values, [f"{value:,}" for value in values])
        axes.minorticks_off()  # their labels would overlap
        legend_below(axes)

    source = f" Compare {against.source}." if against.source else ""
    return Figure(
        name,
        f"{study.metric.title} against the {against.text}: mean over seeds and its 95 % interval."
        f"{source}",
        data,
        plot,
        3.4 + legend_height(families),
    )


for name, against in AGAINST.items():
    figure(name, "statistics")(partial(score_against, name=name, against=against))


def sensitivity_figure(
    trials: pd.DataFrame, chosen: Mapping[str, float], outcome: str, key: str
) -> Figure:
    """The outcome of tuning against the tuned key, a line for each arm; ``chosen`` is marked."""
    diverged = np.isinf(trials["valid_loss"])
    finished = trials[~diverged].sort_values("lr").assign(x=lambda table: table["lr"])
    lines = interval_of_means(finished, ["arm", "lr"], "valid_loss")
    shown = panels({"": {str(arm): str(arm) for arm in trials["arm"].unique()}})
    values = sorted(trials["lr"].unique())

    def marks(axes: Any, panel: Panel) -> None:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()  # their labels would overlap those of the grid
        for arm in panel.names:
            at = lines[(lines["arm"] == arm) & (lines["x"] == chosen.get(arm))]
            axes.plot(at["x"], at["mean"], "D", color=INK, markersize=5, zorder=3)
            lost = trials.loc[diverged & (trials["arm"] == arm), "lr"].unique()
            if len(lost):  # an empty line that is not clipped would widen the margins
                top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
                axes.plot(lost, [1.0] * len(lost), "x", color=INK, markersize=6, **top)

    title = (
        f"{outcome} of the trials against {key}: mean over seeds. {BAND} A diamond is "
        "the chosen value; a cross at the top, a value at which a trial diverged."
    )
    data, labels = lines.drop(columns="x"), (key, outcome)
    return curves_in_panels("sensitivity", title, data, lines, shown, labels, more=marks, log=True)
