"""Losses over training: a figure with a line a setting, and one for each run without a result."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from norm_plugin.analysis.figures import Figure, draw, legend_below, legend_height, style
from norm_plugin.analysis.study import Failure, Setting, Study

LOSS_OF = {"train": "training", "valid": "validation"}


def curves_figure(study: Study, subset: str) -> Figure | None:
    """Loss over updates, a line a setting: mean over seeds, with the range of the seeds as a band.

    A run that failed or diverged is a thin line of its own, with a cross where it ends. None where
    no run has curves, which runs scored by an older version do not have.
    """
    bands = [(setting, band) for setting in study.settings if (band := _band(setting, subset))]
    ended = [(one, line) for one in study.failures if (line := _ended(one, subset))]
    if not bands and not ended:
        return None
    labels = [one.name for one, _ in bands]
    labels += [f"{one.name}, seed {one.seed} ({one.state})" for one, _ in ended]

    def plot(axes: Any) -> None:
        for setting, band in bands:
            updates, mean, low, high = zip(*band)
            look = style(study.names.index(setting.name))
            (line,) = axes.plot(updates, mean, **look, label=setting.name)
            axes.fill_between(updates, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
        for (failure, line), label in zip(ended, labels[len(bands) :]):
            look = {**style(study.names.index(failure.name)), "linewidth": 0.8}
            axes.plot(*zip(*line), **look, marker="x", markevery=[-1], markersize=8, label=label)
        axes.set_xlabel("updates")
        axes.set_ylabel(f"{LOSS_OF[subset]} loss, {study.baseline.metric.loss_unit}")
        legend_below(axes)

    text = (
        f"{LOSS_OF[subset].capitalize()} loss: mean over seeds; the band spans the seeds (AdaNorm "
        "paper, Figures 1 to 3)."
    )
    if ended:
        text += " A cross marks the last loss of a run that failed or diverged."
    return Figure(
        f"{subset}-loss",
        text,
        draw(plot, height=3.4 + legend_height(labels), name=f"{subset}-loss"),
        ("norm", "placement", "runs", "updates", "mean", "least", "most"),
        [
            *((one.norm, one.placement, _seeds(one), *p) for one, band in bands for p in band),
            *(
                (one.norm, one.placement, f"{one.seed} {one.state}", update, loss, loss, loss)
                for one, line in ended
                for update, loss in line
            ),
        ],
    )


def _seeds(setting: Setting) -> str:
    return " ".join(map(str, setting.seeds))


def _band(setting: Setting, subset: str) -> list[tuple[float, float, float, float]]:
    """Updates, mean, least and most, where every run of the setting was measured.

    Points are matched by epoch and number within the epoch: where each seed has another split, its
    epochs have another length, and the updates are a mean too.
    """
    curves = [run["curves"][subset] for run in setting.runs if run.get("curves")]
    if len(curves) < len(setting.runs):
        return []
    placed = [_by_place(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(points) for points in placed)))
    band = []
    for place in shared:
        points = [one[place] for one in placed]
        losses = [point["loss"] for point in points]
        updates = statistics.mean(point["updates"] for point in points)
        band.append((updates, statistics.fmean(losses), min(losses), max(losses)))
    return band


def _by_place(curve: Sequence[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """The points with a loss, by epoch and number within the epoch."""
    placed, seen = {}, Counter[int]()
    for point in curve:
        seen[point["epoch"]] += 1
        if "loss" in point:
            placed[point["epoch"], seen[point["epoch"]]] = point
    return placed


def _ended(failure: Failure, subset: str) -> list[tuple[int, float]]:
    """Updates and losses of a run without a result."""
    points = (failure.curves or {}).get(subset, [])
    return [(point["updates"], point["loss"]) for point in points if "loss" in point]
