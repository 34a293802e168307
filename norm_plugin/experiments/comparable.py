"""Which runs may be compared, and the interval of a mean over them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.spec import changed_sources

TRAINING = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")
"""The sections of the settings that say how a model was trained."""
SPLIT_SEED = "data.settings.split_seed"
"""The seed with which a prepared corpus was split at random."""


def check_alike(runs: pd.DataFrame, what: str, columns: Iterable[str]) -> None:
    """Raise CommandError that names two runs which differ in one of ``columns``."""
    values = runs[[name for name in columns if name in runs]].map(_comparable)
    differs = (values != values.iloc[0]).any(axis="columns")
    if not differs.any():
        return
    first, other = runs.iloc[0], runs.loc[differs.idxmax()]
    changed = [name for name in values if values[name].iloc[0] != values.loc[other.name, name]]
    sides = (", ".join(f"{name} {run[name]}" for name in changed) for run in (first, other))
    raise CommandError(
        f"{_names(first, other)} differ in {what} ({'; '.join(sides)}); run them with the same "
        "settings, or name what the study varies by --vary KEY"
    )


def _comparable(value: Any) -> str:
    """A value as text; lists have no hash, and a missing value is not equal to itself."""
    missing = value is None or (isinstance(value, float) and value != value)
    return "" if missing else json.dumps(value, default=str)


def _names(first: pd.Series, other: pd.Series) -> str:
    ours, theirs = (f"{run['norm']} seed {run['seed']}" for run in (first, other))
    if first["experiment"] != other["experiment"]:
        ours += f" of {first['experiment']}"
    return f"{ours} and {theirs} of {other['experiment']}"


def check_settings_alike(
    runs: pd.DataFrame, sections: Sequence[str], vary: Sequence[str] = ()
) -> None:
    """Raise CommandError where runs differ in one of these sections of their settings.

    The seed does not count, which some tasks repeat among their settings.

    Args:
        vary: keys in which the runs may differ, ``optimization.lr``. fairseq repeats the learning
            rate among the settings of the optimizer and of the schedule, where it is free too.
    """
    free = {"seed", *(key.rpartition(".")[2] for key in vary)}
    for section in sections:
        prefix = f"settings.{section}."
        settings = [name for name in runs if name.startswith(prefix)]
        names = [name for name in settings if name.removeprefix(prefix) not in free]
        check_alike(runs, f"settings of {section}", names)


def check_same_sources(runs: pd.DataFrame) -> None:
    """Raise CommandError that names the file of the user dir of which runs have other versions."""
    if "sources" not in runs:
        return
    first = runs.iloc[0]
    for _, other in runs.iloc[1:].iterrows():
        sources = (run["sources"] for run in (first, other))
        changed = changed_sources(*(files if isinstance(files, dict) else {} for files in sources))
        if changed:
            raise CommandError(
                f"{_names(first, other)} were trained with different versions of "
                f"{', '.join(changed)}; remove the runs and results of one version, and run them "
                "again"
            )


def check_same_data(runs: pd.DataFrame) -> None:
    """Raise CommandError that names two runs with other data, or scored by another metric.

    A corpus without a split of its own is split anew for each seed. Then the runs of each split
    must have the same data, and the splits must be of one corpus.
    """
    check_alike(runs, "metric", ["metric"])
    splits = [split for _, split in runs.groupby("split_seed", dropna=False)]
    for split in splits:
        check_alike(split, "data checksum", ["data.checksum"])
    if len(splits) > 1:
        check_alike(runs, "corpus", ["data.corpus"])
        settings = [name for name in runs if name.startswith("data.settings.")]
        check_alike(runs, "settings of the data", [n for n in settings if n != SPLIT_SEED])


def half_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> float:
    """Half the width of the confidence interval of the mean, by Student's t; two values or more."""
    quantile = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    return float(quantile * stats.sem(values))


def span(counts: Iterable[int]) -> str:
    """``1,000``, or ``998 to 1,000`` where runs differ, as on random splits of a corpus."""
    distinct = sorted(set(counts))
    return " to ".join(f"{count:,}" for count in dict.fromkeys((distinct[0], distinct[-1])))
