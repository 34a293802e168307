"""The results of tuning: the chosen values, and how sensitive each arm is to them.

A table of trials has the columns ``arm``, ``lr`` (the value of the tuned key), ``seed`` and
``valid_loss``, which is infinite if the trial diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from norm_lab.study.arms import arm_of, name_arms
from norm_lab.study.significance import describe, pooled_standard_deviation
from norm_lab.study.study import Study
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json

Point = tuple[float, ...]
"""A value for each key of the grid."""
OUTCOME = "valid_loss"
"""The column of :func:`read_results` that is minimized."""


def choose(trials: pd.DataFrame, keys: Sequence[str]) -> dict[str, Point]:
    """Return the point of each arm with the lowest mean outcome over the seeds."""
    means = trials.groupby(["arm", *keys], as_index=False)[OUTCOME].mean()
    best = means.loc[means.groupby("arm")[OUTCOME].idxmin()].set_index("arm")
    return {arm: tuple(best.loc[arm, list(keys)]) for arm in dict.fromkeys(trials["arm"])}


@dataclass(frozen=True)
class Tuned:
    """The trials of a tuning of ``key``, the chosen value of each arm, and the rule in words."""

    key: str
    trials: pd.DataFrame
    chosen: Mapping[str, float]
    rule: str


def select_best_per_arm(
    study: Study,
    key: str,
    labels: Mapping[str, str] | None = None,
    declared: Mapping[str, str] | None = None,
) -> tuple[Study, Tuned]:
    """Return the study with each arm at its best value of the key, and all of its runs as trials.

    Args:
        labels: new names of arms, by their names without the key, which all names omit.
        declared: those of a study file, some of whose arms may have no runs.

    Raises:
        CommandError: the key is not a setting of the runs, its values are not numbers, no run of
            the baseline has a validation loss, or a label is wrong.
    """
    runs, failures = (_by_value(table, study, key) for table in (study.runs, study.failures))
    name_arms((runs, failures), labels or {}, declared=declared, without=key)
    both = pd.concat([runs, failures[failures["state"] == "diverged"]], ignore_index=True)
    losses = both[OUTCOME].astype(float).mask(both["state"] == "diverged", math.inf)
    trials = both[["arm", "seed", "lr"]].assign(**{OUTCOME: losses}).dropna(subset=OUTCOME)
    baseline = runs.loc[study.runs["arm"] == study.baseline, "arm"].iloc[0]
    missing = sorted({*runs["arm"]} - {*trials["arm"]})
    if baseline in missing:
        raise CommandError(
            f"no run of {baseline} has a validation loss, by which its {key} is chosen; drop "
            "--vary, or name another --baseline"
        )
    if trials.groupby("arm")["lr"].nunique().max() < 2:
        raise CommandError(f"no arm has runs at two values of {key}; drop --vary {key}")
    trials = on_common_seeds(trials)
    chosen = {arm: value for arm, (value,) in choose(trials, ["lr"]).items()}
    runs, failures = (
        table[table["lr"] == table["arm"].map(chosen)].drop(columns="lr")
        for table in (runs, failures)
    )
    runs = runs.sort_values("arm", key=lambda arms: arms != baseline, kind="stable")
    rule = (
        f"Each arm is compared at the value of {key} with its least mean validation loss, over "
        "the seeds that it has at every value, if there are any. The runs that are compared also "
        "chose the value, so the comparisons are exploratory."
    )
    if missing:
        rule += f" Excluded, because no run has a validation loss: {', '.join(missing)}."
    study = replace(
        study,
        runs=runs.reset_index(drop=True),
        failures=failures.reset_index(drop=True),
        baseline=baseline,
        primary=(),  # the runs chose the values, and the declared arms may have other names
    )
    return study, Tuned(key, trials.reset_index(drop=True), chosen, rule)


def on_common_seeds(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of each arm with the seeds that it has at every value, or all if none is.

    A mean over other seeds would differ by their losses, too.
    """
    values = trials.groupby("arm")["lr"].transform("nunique")
    common = values == trials.groupby(["arm", "seed"])["lr"].transform("nunique")
    return trials[common | ~common.groupby(trials["arm"]).transform("any")]


def _by_value(table: pd.DataFrame, study: Study, key: str) -> pd.DataFrame:
    """Return a table of runs with the values of a key as ``lr``."""
    column = f"settings.{key}"
    if column not in study.runs:
        raise CommandError(f"no run has the setting {key}; give another key to --vary")
    records = study.runs.to_dict("records")
    of_recipe = [run[column] for run in records if key not in run["differs"]]
    values = [of.get(key, *(of_recipe[:1] or [math.nan])) for of in table["differs"]]
    values = [value[0] if isinstance(value, list) else value for value in values]
    try:
        return table.assign(lr=[float(value) for value in values])
    except (TypeError, ValueError) as error:
        raise CommandError(f"the values of {key} are not numbers: {error}") from error


def read_tuned(study: Study, path: Path) -> Tuned:
    """Read the file of ``norm-plugin tune``, with the names of the arms of a study.

    If the grid has two keys, only the trials at the chosen value of the second one are kept.

    Raises:
        CommandError: a run has another value than that chosen for its arm.
    """
    content = read_json(path)
    key, *others = content["grid"]
    both = pd.concat([study.runs, study.failures]).to_dict("records")
    arms = {arm_of(run).file_name(content["grid"]): run["arm"] for run in both}
    chosen = {label: entry["chosen"] for label, entry in content["arms"].items()}
    for run in study.runs.to_dict("records"):
        _check_chosen(run, chosen.get(arm_of(run).file_name(content["grid"]), {}), path)
    trials = pd.DataFrame(content["trials"])
    for other in others:
        best = trials["arm"].map({label: values[other] for label, values in chosen.items()})
        trials = trials[np.isclose(trials[other], best, atol=0)]
    trials = pd.DataFrame(
        {
            "arm": trials["arm"].map(lambda label: arms.get(label, label)),
            "lr": trials[key],
            "seed": trials["seed"],
            OUTCOME: trials[OUTCOME].astype(float).fillna(math.inf),
        }
    )
    by_arm = {arms.get(label, label): float(values[key]) for label, values in chosen.items()}
    rule = (
        "Before the runs, each arm was tuned over the same grid with other seeds: "
        f"{content['rule']} is chosen."
    )
    return Tuned(key, trials, by_arm, rule)


def _check_chosen(run: Mapping[str, Any], chosen: Mapping[str, float], path: Path) -> None:
    """Raise CommandError if a run was not trained with the values chosen for its arm."""
    for key, value in chosen.items():
        own = run["differs"].get(key, run.get(f"settings.{key}"))
        own = own[0] if isinstance(own, list) else own
        if own is None or not np.isclose(own, value, atol=0):
            raise CommandError(
                f"{run['arm']}, seed {run['seed']}, was trained with {key}={own}, but {path} "
                f"selects {value:g}; remove its result, and run norm-plugin sweep STUDY --tuned"
            )


def chosen_table(trials: pd.DataFrame, chosen: Mapping[str, float]) -> pd.DataFrame:
    """Return the chosen and the second-best value of each arm.

    Returns:
        columns ``arm``, ``lr``, ``n`` (seeds), ``tuned`` (the mean outcome), ``next_lr``,
        ``behind`` (how much worse the mean of the next best value is), ``spread`` (the standard
        deviation between seeds, pooled over both values), ``note``, ``grid`` (all values) and
        ``diverged`` (the values with a trial that diverged). The note says if the curve is flat:
        ``behind`` is less than ``spread``, so the choice does not matter.
    """
    rows = []
    for arm, lr in chosen.items():
        arm_trials = trials[trials["arm"] == arm]
        means = arm_trials.groupby("lr")[OUTCOME].mean()
        others = means.drop(lr).sort_values()
        next_lr, next_mean = next(others.items(), (math.nan, math.nan))
        both = arm_trials[arm_trials["lr"].isin([lr, next_lr]) & np.isfinite(arm_trials[OUTCOME])]
        spread = pooled_standard_deviation([s.tolist() for _, s in both.groupby("lr")[OUTCOME]])
        behind = next_mean - means[lr]
        notes = ["flat: the choice does not matter"] if behind < spread else []
        if lr in (means.index.min(), means.index.max()):
            notes.append("on the edge of the grid")
        rows.append(
            {
                "arm": arm,
                "lr": lr,
                "n": arm_trials["seed"].nunique(),
                "tuned": means[lr],
                "next_lr": next_lr,
                "behind": behind,
                "spread": spread,
                "note": "; ".join(notes),
                "grid": ", ".join(map("{:g}".format, means.index)),
                "diverged": ", ".join(map("{:g}".format, means.index[np.isinf(means)])),
            }
        )
    return pd.DataFrame(rows)


def learning_rate_sensitivity(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the learning rate sensitivity of each arm (Wortsman et al. 2023, sec. 2.3).

    See arXiv 2309.14322. It is the mean over a range of learning rates of ``min(loss(rate),
    initial loss) - lowest loss``. Here the range is the grid, with equal weights, and the worst
    finite loss of any trial replaces the initial loss. It is computed per seed; the interval is
    Student's over seeds.

    Returns:
        columns ``arm``, ``n`` (seeds), ``sensitivity``, ``sensitivity_low`` and
        ``sensitivity_high``, and the range ``from_lr``, ``to_lr``.
    """
    start = trials.loc[np.isfinite(trials[OUTCOME]), OUTCOME].max()
    losses = trials.assign(loss=trials[OUTCOME].clip(upper=start))
    rows = []
    for arm, group in losses.groupby("arm", sort=False):
        by_seed = group.groupby("seed")["loss"].agg(lambda values: (values - values.min()).mean())
        sample = describe(by_seed.tolist())
        rates = group["lr"].min(), group["lr"].max()
        rows.append((arm, sample.count, sample.mean, *sample.interval, *rates))
    columns = ["arm", "n", "sensitivity", "sensitivity_low", "sensitivity_high", "from_lr", "to_lr"]
    return pd.DataFrame(rows, columns=columns)
