"""What results of several runs share: whether they may be compared, and the interval of a mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.results import Result

TRAINING = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")
"""The sections of the settings that say how a model was trained."""
Read = Callable[[Result], Any]


def check_alike(results: Sequence[Result], what: str, read: Read) -> None:
    """Raise CommandError that names two runs which differ in what ``read`` gives."""
    first = results[0]
    for other in results[1:]:
        if read(other) != read(first):
            raise CommandError(
                f"{_names(first, other)} differ in {what}"
                f"{_difference(read(first), read(other))}; run them with the same settings, or "
                "rename one experiment"
            )


def check_settings_alike(results: Sequence[Result], sections: Sequence[str]) -> None:
    """Raise CommandError where runs differ in one of these sections of their settings."""
    for section in sections:
        check_alike(results, f"settings of {section}", partial(_settings, section))


def _settings(section: str, run: Result) -> Any:
    return run["settings"].get(section)


def half_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> float:
    """Half the width of the confidence interval of the mean, by Student's t; two values or more."""
    quantile = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    return float(quantile * stats.sem(values))


def _names(first: Result, other: Result) -> str:
    ours, theirs = (f"{run['norm']} seed {run['seed']}" for run in (first, other))
    if first["experiment"] != other["experiment"]:
        ours += f" of {first['experiment']}"
    return f"{ours} and {theirs} of {other['experiment']}"


def _difference(first: Any, second: Any) -> str:
    """The two values, of settings only the keys that differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        missing = object()
        keys = [k for k in {**first, **second} if first.get(k, missing) != second.get(k, missing)]
        first, second = ({key: value.get(key) for key in keys} for value in (first, second))
    return f" ({first} and {second})"
