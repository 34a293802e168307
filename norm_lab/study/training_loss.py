"""The training loss at the end of runs, over the same updates or the same epoch for all of them.

A stored result has the mean over its last epoch. If arms stop at different epochs, these means are
not comparable, and in a run of one epoch it is a mean over the whole training.
"""

from __future__ import annotations

import pandas as pd

from norm_lab.results.folder import RUN_KEY

LAST_UPDATES = 100
"""The training loss is a mean over this number of updates, if the log has losses that often."""
NO_LOSS = ""


def training_loss(runs: pd.DataFrame, curves: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return the training loss of each run at the last point in training that all runs reach.

    It is the mean over the last :data:`LAST_UPDATES` updates before that point, or over a few more
    if no line of the log ends on them. If a log has no losses within epochs, it is the mean over
    the last epoch of all runs. If that is the first epoch, which is a mean over the whole training,
    there is none.

    Args:
        runs: the table of :func:`read_results`.
        curves: the table of :func:`read_curves`.

    Returns:
        The loss in the unit of the curves, by the index of ``runs``, missing for a run without
        curves; and the updates over which it is a mean, such as ``updates 901 to 1,000`` or
        ``epoch 5``, empty if no run has it.
    """
    keys = pd.MultiIndex.from_frame(runs[RUN_KEY])
    of_runs = curves[pd.MultiIndex.from_frame(curves[RUN_KEY]).isin(keys)].dropna(subset="loss")
    by_run, period = _last_update_means(of_runs)
    if not period:
        by_run, period = _last_epoch_means(of_runs[of_runs["subset"] == "train"])
    return pd.Series(keys.map(by_run), runs.index, dtype=float), period


def _last_update_means(curves: pd.DataFrame) -> tuple[dict[tuple[str, str, int], float], str]:
    """Return the means over the last updates; a line of a log is a mean since the previous line."""
    trained = curves[curves["subset"].isin(("train", "train_inner"))]
    points = trained[trained["subset"] == "train_inner"].sort_values("updates")
    runs = trained[RUN_KEY].drop_duplicates()
    counts = points["updates"].value_counts()
    shared = [int(updates) for updates in sorted(counts[counts == len(runs)].index)]
    if not shared or shared[-1] < LAST_UPDATES:
        return {}, NO_LOSS
    last = shared[-1]
    first = max((updates for updates in shared if updates <= last - LAST_UPDATES), default=0)
    weights = points["updates"] - points.groupby(RUN_KEY)["updates"].shift(fill_value=0)
    inside = points["updates"].between(first, last, inclusive="right")
    points = points.assign(weight=weights, weighted=points["loss"] * weights)[inside]
    sums = points.groupby(RUN_KEY)[["weighted", "weight"]].sum()
    means = sums["weighted"] / sums["weight"]
    return means.to_dict(), f"updates {first + 1:,} to {last:,}"


def _last_epoch_means(curves: pd.DataFrame) -> tuple[dict[tuple[str, str, int], float], str]:
    """Return the means over the last epoch that all runs have; none if it is the first."""
    last = curves.groupby(RUN_KEY)["epoch"].max().min()
    if pd.isna(last) or last < 2:
        return {}, NO_LOSS
    of_epoch = curves[curves["epoch"] == last].drop_duplicates(RUN_KEY, keep="last")
    return of_epoch.set_index(RUN_KEY)["loss"].to_dict(), f"epoch {last:.0f}"
