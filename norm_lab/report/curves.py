"""Curves of the losses over training."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from norm_lab.report.figure import (
    INK,
    MOST_LINES,
    SMALL,
    Figure,
    baselines_of,
    figure,
    legend_below,
    legend_height,
    outliers,
    styles_by_arm,
)
from norm_lab.results.folder import RUN_KEY
from norm_lab.study.comparisons import split_ratio
from norm_lab.study.significance import CONFIDENCE
from norm_lab.study.study import Study

FEWEST_POINTS = 3
"""The number of points that a run needs for a curve."""


@dataclass(frozen=True)
class Panel:
    """Arms that are drawn on the same axes; ``names`` are their names in the legend, by arm."""

    title: str
    names: Mapping[str, str]
    own_scale: bool = False


def panels(groups: Mapping[str, Mapping[str, str]], out: Sequence[str] = ()) -> list[Panel]:
    """Divide arms into panels: one per group, or one per arm if there are too many.

    A panel of one arm has the arm's name as its title, because the legend does not have it.

    Args:
        groups: for each group, the short names of its arms, without baselines.
        out: the arms with a scale of their own.
    """
    crowded = any(len(set(names) - set(out)) >= MOST_LINES for names in groups.values())
    together, apart = [], []
    for group, names in groups.items():
        # a label of a study file may say the placement itself
        titles = {
            arm: name if len(groups) == 1 or name == arm else f"{name}, {group}"
            for arm, name in names.items()
        }
        inside = {arm: name for arm, name in names.items() if arm not in out}
        if crowded:
            together += [Panel(titles[arm], {arm: name}) for arm, name in inside.items()]
        elif inside:
            (first, *others) = inside
            together.append(Panel(group if others else titles[first], inside))
        apart += [Panel(titles[arm], {arm: names[arm]}, True) for arm in names if arm in out]
    return together + apart


class Baseline(NamedTuple):
    """The line of the baseline in a panel, with columns ``x`` and ``mean``; its name and style."""

    name: str
    line_style: Mapping[str, Any]
    line: pd.DataFrame


def curves_in_panels(
    name: str,
    title: str,
    data: pd.DataFrame,
    lines: pd.DataFrame,
    shown: Sequence[Panel],
    labels: tuple[str, str],
    styles: Mapping[str, Mapping[str, Any]],
    baseline: Callable[[Panel], Baseline] | None = None,
    more: Callable[[Any, Panel], None] | None = None,
    settled: float = 0,
    log: bool = False,
    note: str = "",
) -> Figure:
    """Draw lines with bands, in panels with a common scale, except those with their own.

    Args:
        lines: columns ``arm``, ``x``, ``mean``, ``low`` and ``high``.
        styles: the color and dashes of each arm.
        settled: the scale ignores points before this share of the x axis.
        log: use a logarithmic x axis.
    """
    alone = all(len(panel.names) == 1 for panel in shown)
    columns = min(len(shown), 3 if alone else 2)
    rows = math.ceil(len(shown) / columns)
    names = list(dict.fromkeys(name for panel in shown for name in panel.names.values()))
    drawn = []
    for panel in shown:
        of_panel = [lines[lines["arm"].isin(panel.names)]]
        of_panel += [] if baseline is None else [baseline(panel).line]
        both = pd.concat(of_panel)
        late = both[both["x"] >= settled * both["x"].max()]
        drawn.append(late[["mean", "low", "high"]].stack())
    together = [ends for ends, panel in zip(drawn, shown) if not panel.own_scale]

    def plot(grid: Any) -> None:
        handles = {}
        for axes, panel, ends in zip(grid.flat, shown, drawn):
            if baseline is not None:
                name, line_style, line = baseline(panel)
                (handles[name],) = axes.plot(line["x"], line["mean"], **line_style)
            for arm, short in panel.names.items():
                line = lines[lines["arm"] == arm]
                (mean,) = axes.plot(line["x"], line["mean"], **styles[arm])
                band = {"color": styles[arm]["color"], "alpha": 0.2, "linewidth": 0}
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
    height += legend_height(names)
    return Figure(name, title, data, plot, height, (rows, columns), note=note)


def interval_of_means(
    points: pd.DataFrame, by: Sequence[str], value: str, test_to_train: float = 0.0
) -> pd.DataFrame:
    """Return the mean of a value and its band: the 95 % interval, or the range for two seeds.

    Args:
        points: one row per seed and group; the column ``x`` is averaged too.
        test_to_train: see :func:`~norm_lab.study.significance.compare`.

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
    """Return the finite losses of runs of a study, in the subset that is logged most often.

    Args:
        runs: the runs with a result, or the failures.

    Returns:
        columns ``arm``, ``seed``, ``epoch``, ``number`` (the index of the point in its epoch),
        ``x`` (the number of updates), ``loss``, and for failures ``state``.
    """
    runs = runs.filter(items=["arm", *RUN_KEY, "state"])
    logged = [study.curves[study.curves["subset"] == subset] for subset in SUBSETS[kind]]
    drawn = next((some for some in logged if some["loss"].notna().any()), logged[0])
    points = runs.merge(drawn, on=RUN_KEY)
    points["number"] = points.groupby([*RUN_KEY, "epoch"]).cumcount()
    return points.dropna(subset="loss", ignore_index=True).rename(columns={"updates": "x"})


def mean_curves(points: pd.DataFrame, test_to_train: float = 0.0) -> pd.DataFrame:
    """Return each arm's mean loss where all its seeds have a point; see interval_of_means."""
    lines = interval_of_means(points, ["arm", "epoch", "number"], "loss", test_to_train)
    return lines[lines["seeds"] == lines["arm"].map(points.groupby("arm")["seed"].nunique())]


def curve_differences(
    points: pd.DataFrame, pairs: Sequence[tuple[str, str]], test_to_train: float = 0.0
) -> pd.DataFrame:
    """Return the mean over seeds of the difference between the loss and that of the baseline."""
    tables = [points.iloc[:0]]
    for arm, baseline in pairs:
        if arm != baseline:
            own, others = (points[points["arm"] == name] for name in (arm, baseline))
            both = own.merge(others[[*POINT, "loss"]], on=POINT, suffixes=("", "_of_baseline"))
            tables.append(both.assign(loss=both["loss"] - both["loss_of_baseline"]))
    return mean_curves(pd.concat(tables, ignore_index=True), test_to_train)


BAND = "The band is the 95 % interval of the mean at each point. With two seeds, it is their range."
SETTLED = 0.1
"""The scale ignores losses before this share of the updates, as these are high."""
EARLY = "In the first tenth of the updates, a line may be outside its panel."
SUBSETS = {"validation": ["valid"], "training": ["train_inner", "train"]}
"""The subsets of the curves of each loss; of those for training, the first has more points."""


def _panels(study: Study, points: pd.DataFrame) -> list[Panel]:
    """Return the panels for both the differences and the losses."""
    differences = curve_differences(points, study.pairs, split_ratio(study.runs))
    last = differences[differences["x"] >= differences["x"].max() / 2]
    sizes = last["mean"].abs().groupby(last["arm"]).max()
    placements, baselines = study.placements, dict(study.pairs)
    groups: dict[str, dict[str, str]] = {placement: {} for placement in placements.values()}
    for arm, placement in placements.items():
        if arm not in {*baselines.values(), *study.equal_arms}:
            groups[placement][arm] = study.short_names[arm]
    return panels(groups, outliers(sizes.to_dict()))


def loss_curves(study: Study, name: str, kind: str, difference: bool) -> Figure | None:
    """Return the loss over updates, or its difference to the baseline's with the same seed.

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
    baselines, styles = dict(study.pairs), styles_by_arm(study)

    def baseline_line(panel: Panel) -> Baseline:
        name = next((baselines[arm] for arm in panel.names if arm in baselines), study.baseline)
        line = lines[lines["arm"] == name]
        if difference:
            line = pd.DataFrame({"x": [0, lines["x"].max()], "mean": 0.0})
        return Baseline(study.short_names[name], styles[name], line)

    def draw_failed(axes: Any, panel: Panel) -> None:
        for (arm, _), line in failed.groupby(["arm", "seed"], sort=False):
            if arm in panel.names or (arm == study.baseline and panel is shown[0]):
                line_style = {"color": INK, "linewidth": 0.6, "marker": "x", "markevery": [-1]}
                axes.plot(line["x"], line["loss"], **line_style)
                seed, state = line[["seed", "state"]].iloc[-1]
                end = tuple(line[["x", "loss"]].iloc[-1])
                axes.annotate(f" seed {seed} {state}", end, fontsize=SMALL - 2)

    label = f"{kind} loss, {study.metric.loss_unit}"
    if difference:
        which = f" minus that of {baselines_of(study)} with the same seed; below 0 is better"
        label, data = f"difference in {label}", lines
    else:
        which = ": mean over seeds"
        data = pd.concat([lines, failed.rename(columns={"loss": "mean"})], ignore_index=True)
    title = f"{kind.capitalize()} loss{which}."
    if len(failed):
        title += " A cross marks the last loss of a run that failed or diverged."
    return curves_in_panels(
        name,
        title,
        data.rename(columns={"x": "updates"}).assign(arm=data["arm"].map(study.shown)),
        lines,
        shown,
        ("updates", label),
        styles,
        baseline_line,
        more=draw_failed,
        settled=SETTLED,
        note=f"{BAND} {EARLY}",
    )


for name, kind in (("valid", "validation"), ("train", "training")):
    for end in ("difference", "loss"):
        drawing = partial(
            loss_curves, name=f"{name}-{end}", kind=kind, difference=end == "difference"
        )
        figure(f"{name}-{end}", "training")(drawing)
