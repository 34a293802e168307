"""Forest plots of the differences and of the scores: the figures of the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from norm_lab.report.figure import (
    COLORS,
    INK,
    SMALL,
    Figure,
    baselines_of,
    figure,
    outliers,
)
from norm_lab.study.comparisons import describe_arms
from norm_lab.study.significance import Verdict
from norm_lab.study.study import Study


def forest_plot(
    name: str, title: str, data: pd.DataFrame, rows: pd.DataFrame, axis: str, zero: bool = False
) -> Figure:
    """Return a forest plot: for each arm a row with its seeds as dots, its mean and interval.

    Arms are under the heading of their group. Outliers are in a panel on the right with its own
    scale.

    Args:
        rows: columns ``arm``, ``label``, ``group``, ``mean``, ``low``, ``high``; ``values``, the
            values of the seeds; and ``filled``, whether the mark is filled.
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
            lines.append((row["label"], row))

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
    of_line = 0.36 if any("\n" in text for text, _ in lines) else 0.26
    height = 0.7 + of_line * len(lines)
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


@figure("differences", "verdicts")
def differences(study: Study) -> Figure | None:
    """Return a forest plot of the difference of every arm from its baseline."""
    table = study.comparisons.of()
    table = table[table["difference"].notna()]
    if table.empty:
        return None
    rows = table[["arm"]].assign(
        group=table["arm"].map(study.placements),
        label=[_difference_label(row, study) for row in table.to_dict("records")],
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
        f"{metric.title}: difference to {baselines_of(study)}, with its 95 % interval, not "
        f"corrected for the number of comparisons; better is on the {better}. A dot is a seed. A "
        "mark is filled where the verdict, after correction, is better or worse.",
        rows.drop(columns=["values", "label"]),
        rows,
        f"difference in {metric.title}",
        zero=True,
    )


def _difference_label(row: Mapping[str, Any], study: Study) -> str:
    """Return the label of a row: the arm, and the baseline if that has another placement."""
    arm, baseline = row["arm"], row["baseline"]
    short, placements = study.short_names[arm], study.placements
    return short if placements[arm] == placements[baseline] else f"{short} minus\n{baseline}"


@figure("scores", "verdicts")
def scores(study: Study) -> Figure:
    """Return a forest plot of the scores of every arm."""
    table = describe_arms(study.runs, study.arms)
    values = study.runs.groupby("arm")["score"].agg(tuple)
    rows = table.assign(
        group=table["arm"].map(study.placements),
        label=table["arm"].map(study.short_names),
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
