"""How long training takes to a given validation loss, from the curves of the results."""

from __future__ import annotations

from dataclasses import dataclass

from norm_plugin.analysis.study import Setting, Study
from norm_plugin.experiments.results import Result


@dataclass(frozen=True)
class Reached:
    """When the runs of a setting first had a validation loss of at most some value.

    Attributes:
        updates: of each run that reached it.
        seconds: as long; None where the result does not say how long the training took.
        least: the smallest validation loss of any run; None without a curve.
    """

    setting: Setting
    updates: tuple[int, ...]
    seconds: tuple[float | None, ...]
    least: float | None


def validation(run: Result) -> list[tuple[int, float]]:
    """Updates and validation losses of a run, in order; empty for a result without curves."""
    points = (run.get("curves") or {}).get("valid", [])
    return [(point["updates"], point["loss"]) for point in points if "loss" in point]


def least_loss(study: Study) -> float | None:
    """The least validation loss of the baseline, the largest over its seeds; None without curves.

    Every seed of the baseline reaches it. The last loss would not do: where the models overfit, it
    is so high that every run is below it from the start.
    """
    curves = [validation(run) for run in study.baseline.runs]
    return max((min(loss for _, loss in curve) for curve in curves if curve), default=None)


def when_reached(setting: Setting, loss: float) -> Reached:
    """When each run first had at most this validation loss."""
    updates: list[int] = []
    seconds: list[float | None] = []
    for run in setting.runs:
        at = next((update for update, value in validation(run) if value <= loss), None)
        if at is not None:
            updates.append(at)
            seconds.append(_seconds(run, at))
    losses = [value for run in setting.runs for _, value in validation(run)]
    return Reached(setting, tuple(updates), tuple(seconds), min(losses, default=None))


def _seconds(run: Result, updates: int) -> float | None:
    """Into the training: its updates take equally long, as far as a result can tell."""
    total, length = run["training"]["updates"], run["training"]["seconds"]
    return length * updates / total if total and length else None
