"""Check that runs may be compared: same data, settings and files of the user dir."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from norm_lab.config.spec import changed_sources
from norm_plugin.io.command_line import CommandError

TRAINING = ("task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")
"""The sections of the settings that determine the training."""
SPLIT_SEED = "data.settings.split_seed"
"""The column of the seed of a random split of the corpus."""
KERNELS_FOUND = "norm_kernels_found"
"""A setting of a stored model: the kernels that its machine had."""
NOT_SETTINGS = ("seed", KERNELS_FOUND)
"""Stored settings in which the runs of an arm may differ."""


def check_alike(runs: pd.DataFrame, what: str, columns: Iterable[str]) -> None:
    """Raise CommandError if two runs differ in one of ``columns``."""
    names = [name for name in columns if name in runs]
    # one tuple per run; pandas would take far longer for so few rows
    values = list(zip(*(map(comparable, runs[name]) for name in names)))
    place = next((place for place, of_run in enumerate(values) if of_run != values[0]), None)
    if place is None:
        return
    first, other = runs.iloc[0], runs.iloc[place]
    changed = [name for name, a, b in zip(names, values[0], values[place]) if a != b]
    sides = (", ".join(f"{name} {run[name]}" for name in changed) for run in (first, other))
    raise CommandError(
        f"{_names(first, other)} differ in {what} ({'; '.join(sides)}); run them with the same "
        "settings, or declare what the study varies by --vary KEY"
    )


def comparable(value: Any) -> str:
    """Return a value as text, since lists have no hash and NaN is not equal to itself.

    A missing value is empty.
    """
    missing = value is None or (isinstance(value, float) and value != value)
    return "" if missing else json.dumps(value, default=str)


def _names(first: pd.Series, other: pd.Series) -> str:
    one, two = (f"{run['norm']} seed {run['seed']}" for run in (first, other))
    if first["experiment"] != other["experiment"]:
        one += f" of {first['experiment']}"
    return f"{one} and {two} of {other['experiment']}"


def check_settings_alike(
    runs: pd.DataFrame, sections: Sequence[str], vary: Sequence[str] = ()
) -> None:
    """Raise CommandError if runs differ in these sections of their settings, except in seeds.

    Args:
        vary: keys in which the runs may differ, such as ``optimization.lr``, or whole sections.
            fairseq repeats the learning rate in the settings of the optimizer and of the schedule,
            where it may then differ too.
    """
    free = {*NOT_SETTINGS, *(key.rpartition(".")[2] for key in vary)}
    for section in (name for name in sections if name not in vary):
        prefix = f"settings.{section}."
        settings = [name for name in runs if name.startswith(prefix)]
        names = [name for name in settings if name.removeprefix(prefix) not in free]
        check_alike(runs, f"settings of {section}", names)


def check_same_sources(runs: pd.DataFrame) -> None:
    """Raise CommandError if runs used different versions of a file of the user dir."""
    if "sources" not in runs:
        return
    first = runs.iloc[0]
    files = [files if isinstance(files, dict) else {} for files in runs["sources"]]
    for place, of_other in enumerate(files):
        if changed := changed_sources(files[0], of_other):
            other = runs.iloc[place]
            raise CommandError(
                f"{_names(first, other)} were trained with different versions of "
                f"{', '.join(changed)}; remove the runs and results of one version, and run them "
                "again"
            )


def check_same_data(runs: pd.DataFrame) -> None:
    """Raise CommandError if runs have different data or metrics.

    If each seed splits the corpus at random, only runs of the same split must have the same data,
    and all splits must be of one corpus.
    """
    check_alike(runs, "metric", ["metric"])
    splits = [split for _, split in runs.groupby("split_seed", dropna=False)]
    for split in splits:
        check_alike(split, "data checksum", ["data.checksum"])
    if len(splits) > 1:
        check_alike(runs, "corpus", ["data.corpus"])
        settings = [name for name in runs if name.startswith("data.settings.")]
        check_alike(runs, "settings of the data", [n for n in settings if n != SPLIT_SEED])
