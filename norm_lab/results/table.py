"""The results of some folders as tables of runs, of losses and of failures."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

import pandas as pd

from norm_lab.results.folder import (
    ARM,
    RUN_KEY,
    Row,
    check_has_results,
    headline_column,
    read_folder,
)

POINT = ["subset", "epoch", "updates", "loss", "nll_loss"]
FAILED = [*RUN_KEY, *ARM, "run.fold", "differs", "state", "stage", "reason", "progress", "date"]


class Results:
    """The results in some folders, each of which is read once.

    Raises:
        CommandError: a file has an unknown schema or a wrong value.
    """

    def __init__(self, *paths: str | Path) -> None:
        self.folders = [read_folder(Path(path)) for path in paths]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Return the table of :func:`read_results`; CommandError if a folder has no results."""
        rows = []
        for folder in self.folders:
            check_has_results(folder)
            rows += [{**row, "folder": folder.path} for row in folder.finished]
        names = dict.fromkeys(name for row in rows for name in row if name != "curves")
        runs = pd.DataFrame(rows, columns=list(names))
        # by row: two folders may have runs of one name
        runs["valid_loss"] = [min(_losses(row, "valid"), default=math.nan) for row in rows]
        runs["train_loss"] = [(_losses(row, "train") or [math.nan])[-1] for row in rows]
        runs["score"] = [row.get(headline_column(row["metric"]), math.nan) for row in rows]
        runs["placement"] = runs["run.arm.placement"]
        runs["split_seed"] = [row.get("data.settings.split_seed") for row in rows]
        return runs

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Return the table of :func:`read_curves`."""
        points = [
            {**{key: run[key] for key in RUN_KEY}, "subset": subset, **point}
            for folder in self.folders
            for run in folder.runs.values()
            for subset, points in (run.get("curves") or {}).items()
            for point in points
        ]
        return pd.DataFrame(points, columns=[*RUN_KEY, *POINT])

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Return the runs without a result, one row each, sorted by norm and seed: ``FAILED``."""
        rows = [row for folder in self.folders for row in folder.failed]
        return pd.DataFrame([{"progress": "", "date": "", **row} for row in rows], columns=FAILED)


def _losses(row: Row, subset: str) -> list[float]:
    """Return the losses of a run on a subset, in order of updates."""
    points = (row.get("curves") or {}).get(subset, [])
    return [float(point["loss"]) for point in points if point.get("loss") is not None]


def read_results(*paths: str | Path) -> pd.DataFrame:
    """Return the table of finished runs: one row per run, sorted by norm and seed.

    The columns are the values of a result. A nested one has a dotted name:
    ``settings.optimization.lr``, ``data.checksum``, ``training.seconds``. These are added:

    - ``score``: the headline score of the ``metric``
    - ``valid_loss``: the lowest validation loss
    - ``train_loss``: the mean training loss of the last epoch. A study uses that of
      ``study.training_loss`` instead, which is over the same updates for all runs
    - ``placement``: the placement of the norms
    - ``split_seed``: the seed of a random split of the corpus; missing for a fixed split
    - ``git.commit``, ``git.dirty``: the state of the code that scored the run
    - ``folder``: the folder from which it was read

    Args:
        paths: folders of experiments, with one file per run or in the published form.

    Raises:
        CommandError: a folder has no results, or a file has an unknown schema.
    """
    return Results(*paths).runs


def read_curves(*paths: str | Path) -> pd.DataFrame:
    """Return the losses over training of all runs: one row per run, subset and update.

    Returns:
        columns ``experiment``, ``norm``, ``seed``, ``subset`` (train or valid), ``epoch``,
        ``updates``, ``loss`` and ``nll_loss``, in bits.
    """
    return Results(*paths).curves
