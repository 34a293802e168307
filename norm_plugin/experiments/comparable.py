"""What results of several runs share: whether they may be compared, and the interval of a mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.results import Result
from norm_plugin.experiments.sources import changed_sources

TRAINING = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")
"""The sections of the settings that say how a model was trained."""
SPLIT_SEED = "split_seed"
"""The setting of a prepared corpus that says with which seed it was split at random."""
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
    """A section without the seed, which some tasks repeat among their settings."""
    settings = run["settings"].get(section)
    if not isinstance(settings, dict):
        return settings
    return {key: value for key, value in settings.items() if key != "seed"}


def check_same_sources(results: Sequence[Result]) -> None:
    """Raise CommandError that names the file of the user dir of which runs have other versions."""
    first = results[0]
    for other in results[1:]:
        ours, theirs = (run.get("sources") or {} for run in (first, other))
        changed = changed_sources(ours, theirs)
        if changed:
            raise CommandError(
                f"{_names(first, other)} were trained with different versions of "
                f"{', '.join(changed)}; remove the runs and results of one version, and run them "
                "again"
            )


def check_same_data(results: Sequence[Result]) -> None:
    """Raise CommandError that names two runs with other data, or scored by another metric.

    A corpus without a split of its own is split anew for each seed. Then the runs of each split
    must have the same data, and the splits must be of one corpus.
    """
    check_alike(results, "metric", lambda run: run["metric"])
    splits: dict[Any, list[Result]] = {}
    for run in results:
        splits.setdefault(split_seed(run), []).append(run)
    for runs in splits.values():
        check_alike(runs, "data checksum", lambda run: run["data"]["checksum"])
    if len(splits) > 1:
        check_alike(results, "corpus", lambda run: run["data"].get("corpus"))
        check_alike(results, "settings of the data", _prepared_but_split)


def split_seed(run: Result) -> int | None:
    """The seed by which the corpus of a run was split at random; None where it has a split."""
    seed: int | None = _prepared(run).get(SPLIT_SEED)
    return seed


def _prepared(run: Result) -> dict[str, Any]:
    return run["data"].get("settings") or {}


def _prepared_but_split(run: Result) -> dict[str, Any]:
    return {key: value for key, value in _prepared(run).items() if key != SPLIT_SEED}


def half_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> float:
    """Half the width of the confidence interval of the mean, by Student's t; two values or more."""
    quantile = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    return float(quantile * stats.sem(values))


def span(counts: Sequence[int]) -> str:
    """``1,000``, or ``998 to 1,000`` where runs differ, as on random splits of a corpus."""
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


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
