"""Forest plots of the differences and of the scores: the figures of the verdicts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd

from norm_lab.report.figure import (
    COLORS,
    HOVER,
    INK,
    SMALL,
    Figure,
    baselines_of,
    figure,
    outliers,
    styles_by_arm,
)
from norm_lab.study.comparisons import describe_arms
from norm_lab.study.significance import Verdict
from norm_lab.study.study import Study

LABEL = 20
"""A longer label of a row, in letters, has two lines."""


def forest_plot(
    name: str, title: str, data: pd.DataFrame, rows: pd.DataFrame, axis: str, zero: bool = False
) -> Figure:
    """Return a forest plot: for each arm a row with its seeds as dots, its mean and interval.

    Arms are under the heading of their group. Outliers are in a panel on the right with its own
    scale.

    Args:
        rows: columns ``arm``, ``label``, ``group``, ``mean``, ``low``, ``high``; ``values``, the
            values of the seeds, with their ``titles``; ``color``, that of the seeds; and
            ``filled``, whether the mark is filled.
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
            lines.append((_in_two_lines(row["label"]), row))

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
    of_line = 0.38 if any("\n" in text for text, _ in lines) else 0.34
    height = 0.7 + of_line * len(lines)
    options = {"sharey": True, "width_ratios": ratios}
    return Figure(name, title, data, plot, height, (1, len(ratios)), options)


def _in_two_lines(label: str) -> str:
    """Return a label with its words in at most two lines, which leaves room for the drawing."""
    wide = max(LABEL, math.ceil(len(label) / 2) + 5)
    return label if "\n" in label else textwrap.fill(label, wide, break_on_hyphens=False)


def draw_row(axes: Any, place: int, row: Mapping[str, Any]) -> None:
    """Draw a row of a forest plot; see :func:`forest_plot` for ``row``."""
    dots = {"color": row.get("color", COLORS[5]), "alpha": 0.9, "markeredgewidth": 0}
    mark = {"color": INK, "markersize": 6, "markeredgecolor": INK}
    face = {"markerfacecolor": INK if row["filled"] else "none"}
    above, below = place - 0.14, place + 0.2  # so that no seed hides the mean
    axes.plot([row["low"], row["high"]], [above, above], "-", color=INK, linewidth=1.2)
    axes.plot([row["mean"]], [above], "D", **mark, **face)
    for value, title in zip(row["values"], row["titles"]):
        axes.plot([value], [below], "o", **dots, markersize=6, gid=f"{HOVER}{title}")


@figure("differences", "verdicts")
def differences(study: Study) -> Figure | None:
    """Return a forest plot of the difference of every arm from its baseline."""
    table = study.comparisons.of()
    table = table[table["difference"].notna()]
    if table.empty:
        return None
    records, styles = table.to_dict("records"), styles_by_arm(study)
    titles = [
        [f"seed {seed}: {study.metric.text(value, '+')}" for seed, value in zip(seeds, values)]
        for seeds, values in ((_seeds(study, row), row["by_seed"]) for row in records)
    ]
    rows = table[["arm"]].assign(
        group=table["arm"].map(study.placements),
        label=[_difference_label(row, study) for row in records],
        color=[styles[arm]["color"] for arm in table["arm"]],
        titles=titles,
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
        rows[["arm", "group", "mean", "low", "high", "filled"]].assign(
            arm=rows["arm"].map(study.shown)
        ),
        rows,
        f"difference in {metric.title}",
        zero=True,
    )


def _seeds(study: Study, row: Mapping[str, Any]) -> list[int]:
    """Return the seeds with a score that both sides of a comparison have."""
    scored = study.runs[study.runs["score"].notna()]
    sides = ({*scored.loc[scored["arm"] == row[side], "seed"]} for side in ("arm", "baseline"))
    return sorted(set.intersection(*sides))


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
    texts = "seed " + study.runs["seed"].astype(str) + ": "
    texts += study.runs["score"].map(study.metric.text)
    styles = styles_by_arm(study)
    rows = table.assign(
        color=[styles[arm]["color"] for arm in table["arm"]],
        titles=table["arm"].map(texts.groupby(study.runs["arm"]).agg(tuple)),
        group=table["arm"].map(study.placements),
        label=table["arm"].map(study.short_names),
        values=table["arm"].map(values),
        filled=table["arm"].isin({baseline for _, baseline in study.pairs}),
    )
    return forest_plot(
        "scores",
        f"{study.metric.title} of every seed, one dot each, with the mean and its 95 % interval. "
        "The marks of baselines are filled.",
        study.runs[["arm", "seed", "score"]].assign(arm=study.runs["arm"].map(study.shown)),
        rows,
        study.metric.title,
    )
