"""Figures of a report as inline SVG, with the data that they draw.

A figure of the report is a function of a study under the decorator :func:`figure`.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from norm_plugin.analysis.records import (
    RECORDED,
    Recorded,
    drawn_places,
    recorded,
    short_place,
    short_value,
    statistics_of,
)
from norm_plugin.analysis.stats import compare_arms, describe
from norm_plugin.analysis.study import Study
from norm_plugin.experiments.naming import run_label

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
        data: that it draws.
    """

    name: str
    title: str
    svg: str
    data: pd.DataFrame

    @property
    def csv(self) -> str:
        """The data as CSV."""
        return str(self.data.to_csv(index=False, float_format="%.10g"))

    @property
    def standalone(self) -> str:
        """The drawing as a file of its own, which inherits no color from a page."""
        return self.svg.replace("currentColor", INK_ON_PAPER) + "\n"


Drawing = Callable[[Study], Figure | None]
"""None where the study has no data for it."""
FIGURES: dict[str, tuple[str, Drawing]] = {}
"""Section of the page and drawing of each figure by its name, in the order of the page."""


def figure(name: str, section: str) -> Callable[[Drawing], Drawing]:
    """Decorator: the report has this figure, under this section of the template."""

    def register(drawing: Drawing) -> Drawing:
        FIGURES[name] = (section, drawing)
        return drawing

    return register


@figure("scores", "scores")
def scores(study: Study) -> Figure:
    """The score of every seed, with mean and interval, a line an arm."""
    metric, arms = study.metric, study.arms
    table = compare_arms(study.runs, [(arm, arm) for arm in arms]).set_index("arm")

    def plot(axes: Any) -> None:
        for place, arm in enumerate(reversed(arms)):
            color = COLORS[0] if arm == study.baseline else INK
            values = study.runs.loc[study.runs["arm"] == arm, "score"]
            axes.plot(values, [place] * len(values), "o", color=color, alpha=0.5, markersize=4)
            mean, *interval = table.loc[arm, ["mean", "low", "high"]]
            axes.plot([mean], [place], "|", color=color, markersize=16)
            if not math.isnan(interval[0]):
                axes.plot(interval, [place, place], "-", color=color, linewidth=1.5)
        axes.set_yticks(range(len(arms)), list(reversed(arms)))
        axes.set_xlabel(metric.title)

    return Figure(
        "scores",
        f"{metric.title} of every seed; the bars are the mean and its 95 % interval.",
        draw(plot, height=0.9 + 0.34 * len(arms), name="scores"),
        study.runs[["norm", "placement", "seed", "score"]],
    )


def losses(study: Study, subset: str, kind: str) -> Figure | None:
    """Loss over updates, a line an arm: mean over seeds, with the range of the seeds as a band.

    A run that failed or diverged is a thin line of its own, with a cross where it ends. None where
    no run has curves, which runs scored by an older version do not have.
    """
    points = study.curves[(study.curves["subset"] == subset)]
    bands = [(arm, line) for arm in study.arms if not (line := band(study, arm, points)).empty]
    ended = []
    for run in study.failures.to_dict("records"):
        same = points[["experiment", "norm", "seed"]] == [
            run["experiment"],
            run["norm"],
            run["seed"],
        ]
        line = points[same.all(axis="columns") & points["loss"].notna()]
        if not line.empty:
            ended.append((run, line))
    if not bands and not ended:
        return None
    labels = [f"{run['arm']}, seed {run['seed']} ({run['state']})" for run, _ in ended]

    def plot(axes: Any) -> None:
        for arm, line in bands:
            look = style(study.names.index(arm))
            (mean,) = axes.plot(line["updates"], line["mean"], **look, label=arm)
            low, high, color = line["least"], line["most"], mean.get_color()
            axes.fill_between(line["updates"], low, high, color=color, alpha=0.18, linewidth=0)
        for (run, line), label in zip(ended, labels):
            look = {**style(study.names.index(run["arm"])), "linewidth": 0.8, "label": label}
            cross = {"marker": "x", "markevery": [-1], "markersize": 8}
            axes.plot(line["updates"], line["loss"], **look, **cross)
        axes.set_xlabel("updates")
        axes.set_ylabel(f"{kind} loss, {study.metric.loss_unit}")
        legend_below(axes)

    text = (
        f"{kind.capitalize()} loss: mean over seeds; the band spans the seeds (AdaNorm paper, "
        "Figures 1 to 3)."
    )
    if ended:
        text += " A cross marks the last loss of a run that failed or diverged."
    columns = ["norm", "placement", "runs", "updates", "mean", "least", "most"]
    tables = [line.reindex(columns=columns) for _, line in bands]
    for run, line in ended:
        loss = dict.fromkeys(("mean", "least", "most"), line["loss"])
        runs = f"{run['seed']} {run['state']}"
        line = line.assign(placement=run["placement"], runs=runs, **loss)
        tables.append(line.reindex(columns=columns))
    height = 3.4 + legend_height([*(arm for arm, _ in bands), *labels])
    name = f"{subset}-loss"
    return Figure(name, text, draw(plot, height, name), pd.concat(tables, ignore_index=True))


figure("train-loss", "training")(partial(losses, subset="train", kind="training"))
figure("valid-loss", "training")(partial(losses, subset="valid", kind="validation"))


def band(study: Study, arm: str, points: pd.DataFrame) -> pd.DataFrame:
    """The mean, least and greatest loss where every run of an arm was measured.

    Points are matched by epoch and number within the epoch: where each seed has another split, its
    epochs have another length, and the updates are a mean too.
    """
    runs = study.runs[study.runs["arm"] == arm]
    keys = ["experiment", "norm", "seed"]
    line = runs[keys].merge(points, on=keys)
    line["number"] = line.groupby([*keys, "epoch"]).cumcount()
    line = line[line["loss"].notna()]
    places = line.groupby(["epoch", "number"])
    shared = places.agg(
        updates=("updates", "mean"),
        mean=("loss", "mean"),
        least=("loss", "min"),
        most=("loss", "max"),
        count=("loss", "size"),
    )
    shared = shared[shared["count"] == len(runs)].reset_index()
    first, seeds = runs.iloc[0], " ".join(map(str, runs["seed"]))
    return shared.assign(norm=first["norm"], placement=first["placement"], runs=seeds)


@figure("speed", "speed")
def speed(study: Study) -> Figure:
    """The score against training time, a point an arm."""
    title = study.metric.title
    points = study.runs.assign(minutes=study.runs["training.seconds"] / 60)
    arms = points.groupby("arm", sort=False)
    points = arms.agg(
        norm=("norm", "first"),
        placement=("placement", "first"),
        minutes=("minutes", lambda minutes: minutes.mean(skipna=False)),
        score=("score", "mean"),
    ).dropna(subset="minutes")

    def plot(axes: Any) -> None:
        for arm, minutes, score in points[["minutes", "score"]].itertuples():
            place = study.names.index(arm)
            look = {"color": COLORS[place % len(COLORS)], "marker": "os^"[place // len(COLORS) % 3]}
            axes.plot([minutes], [score], linestyle="", **look, label=arm)
        legend_below(axes)
        axes.set_xlabel("minutes of training")
        axes.set_ylabel(title)

    return Figure(
        "speed",
        f"{title} against the time of training, means over seeds. Times of runs that shared a "
        "machine with other work cannot be compared.",
        draw(plot, height=3.6, name="speed"),
        points.reset_index(drop=True),
    )


LOGARITHMIC = 20
"""A row of panels whose values span more than this factor has a logarithmic axis."""


def small_multiples(study: Study, name: str, what: Recorded) -> Figure | None:
    """Recorded statistics: a row of panels for each value, a column for each of up to four places.

    A line is the mean over the seeds of an arm, at the updates that all its records have.
    PowerNorm's figures look at the encoder, whose first norm is the one of the paper.
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
    rows = [value for value in what.values if value in set(lines["value"])]
    arms = [arm for arm in study.arms if arm in set(lines["arm"])]

    def plot(grid: Any) -> None:
        handles = {}
        for (arm, value, place), line in lines.groupby(["arm", "value", "place"], sort=False):
            axes = grid[rows.index(value), places.index(place)]
            look = {**style(study.names.index(arm)), "linewidth": 1}
            line = line.sort_values("update")
            (handles[arm],) = axes.plot(line["update"], line["mean"], **look)
        for row, value in enumerate(rows):
            numbers = lines.loc[lines["value"] == value, "mean"]
            if numbers.min() > 0 and numbers.max() > LOGARITHMIC * numbers.min():
                grid[row, 0].set_yscale("log")
            grid[row, 0].set_ylabel(short_value(value), fontsize=8)
        for column, place in enumerate(places):
            grid[0, column].set_title(short_place(place), fontsize=8)
            grid[-1, column].set_xlabel("updates", fontsize=8)
        for axes in grid.flat:
            axes.tick_params(labelsize=7)
            axes.minorticks_off()  # each would be an element of the file
        legend_below(grid[0, 0], {arm: handles[arm] for arm in arms})

    height = 0.5 + 1.35 * len(rows) + legend_height(arms)
    data = lines.pivot_table(index=["arm", "value", "update"], columns="place", values="mean")
    order = pd.MultiIndex.from_product([arms, rows], names=["arm", "value"])
    data = data.reindex(columns=places).map(lambda number: float(f"{number:.4g}")).reset_index()
    data["order"] = order.get_indexer(data[["arm", "value"]].itertuples(index=False, name=None))
    data = data.sort_values(["order", "update"]).drop(columns="order")
    text = f"{what.title}. Means over seeds, at up to four places."
    return Figure(name, text, draw(plot, height, name, (len(rows), len(places))), data)


for name, what in RECORDED.items():
    figure(name, "statistics")(partial(small_multiples, name=name, what=what))


@figure("spectrum", "statistics")
def spectrum(study: Study) -> Figure | None:
    """Singular values of the embeddings: a line an arm and side, the mean over seeds."""
    found: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for run in study.runs.to_dict("records"):
        for one in (statistics_of(run) or {}).get("spectra", []):
            values = np.array(one["values"])
            found.setdefault((run["arm"], one["side"]), []).append(values / values[0])
    if not found:
        return None
    data = pd.concat(
        pd.DataFrame({"arm": arm, "side": side, "normalized": np.mean(values, axis=0)})
        for (arm, side), values in found.items()
    )
    data.insert(2, "index", data.index + 1)
    labels = {key: key[0] if key[1] == "shared" else ", ".join(key) for key in found}

    def plot(axes: Any) -> None:
        for (arm, side), label in labels.items():
            look = style(study.names.index(arm))
            if side == "decoder":  # the encoder's has the same color
                look["linewidth"] = 0.8
            line = data[(data["arm"] == arm) & (data["side"] == side)]
            axes.plot(line["index"] / len(line), line["normalized"], **look, label=label)
        name_spectrum_axes(axes)

    return Figure(
        "spectrum",
        "Singular values of the embeddings, divided by the largest: mean over seeds (PowerNorm "
        "paper, Figure 6).",
        draw(plot, 3.4 + legend_height(list(labels.values())), "spectrum"),
        data.assign(normalized=data["normalized"].map("{:.5g}".format)),
    )


def name_spectrum_axes(axes: Any) -> None:
    """Labels, scale and legend of a figure of singular values."""
    axes.set_xlabel("index, as a share of all singular values")
    axes.set_ylabel("singular value / largest")
    axes.set_yscale("log")
    legend_below(axes)


@figure("stat-tokens", "statistics")
def stat_tokens(study: Study) -> Figure | None:
    """The score against the batch of the statistics, a line for each norm with several batches."""
    rows = []
    for _, of_arm in study.runs.groupby("arm", sort=False):
        run = of_arm.iloc[0].to_dict()
        tokens = run.get("settings.model.norm_stat_tokens")
        if pd.isna(tokens):  # the statistics are of a batch then
            tokens = run.get("settings.dataset.max_tokens")
        if pd.isna(tokens):
            continue
        differs = run.get("differs")
        differs = differs if isinstance(differs, dict) else {}
        rest = {key: v for key, v in differs.items() if not key.endswith("norm_stat_tokens")}
        norm = run.get("settings.model.norm_type")
        family = f"{run_label(norm if isinstance(norm, str) else run['norm'], rest)}, "
        sample = describe(of_arm["score"].tolist())
        low, high = sample.interval or (None, None)
        family += run["placement"]
        rows.append((family, int(tokens), sample.count, sample.mean, low, high))
    data = pd.DataFrame(rows, columns=["setting", "tokens", "seeds", "mean", "low", "high"])
    data = data[data["setting"].duplicated(keep=False)]
    if data.empty:
        return None
    families = list(dict.fromkeys(data["setting"]))
    data = data.sort_values("tokens").sort_values(
        "setting", key=lambda column: column.map(families.index), kind="stable"
    )

    def plot(axes: Any) -> None:
        for place, family in enumerate(families):
            line, look = data[data["setting"] == family], style(place)
            axes.plot(line["tokens"], line["mean"], "o", **look, label=family)
            for at, low, high in line[["tokens", "low", "high"]].dropna().itertuples(index=False):
                axes.plot([at, at], [low, high], color=look["color"], linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of the batch statistics")
        axes.set_ylabel(study.metric.title)
        legend_below(axes)

    return Figure(
        "stat-tokens",
        f"{study.metric.title} against the batch of the statistics: mean over seeds and its 95 % "
        "interval (PowerNorm paper, Figure 5).",
        draw(plot, 3.4 + legend_height(families), "stat-tokens"),
        data,
    )


def style(place: int) -> dict[str, Any]:
    """How the line with this number is drawn, from 0: 42 are told apart."""
    dash = DASHES[place // len(COLORS) % len(DASHES)]
    return {"color": COLORS[place % len(COLORS)], "linestyle": dash, "linewidth": 1.5}


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
