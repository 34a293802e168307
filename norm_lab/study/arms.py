"""The arms of runs, and their names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.studies import MINUS
from norm_lab.run.record import PLACEMENT, Arm, Value, common_changes
from norm_plugin.io.command_line import CommandError

ARM_COLUMNS = ["norm", "run.arm.norm", "run.fold", "placement", "differs"]
"""The columns of the runs that name an arm. The others are hundreds, and slow to convert."""


class ArmParts(NamedTuple):
    """The norm of an arm, its placement, and its settings that differ from the experiment's."""

    norm: str
    placement: str
    settings: str


class ArmName(NamedTuple):
    """The name of an arm in tables, and the name without its placement."""

    name: str
    short: str


def arm_of(run: Mapping[str, Any]) -> Arm:
    """Return the arm of a run, given its row of the table of runs."""
    folded = "-folded" if run["run.fold"] is True else ""
    return Arm(f"{run['run.arm.norm']}{folded}", run["placement"], run["differs"])


def parts_of_arm(run: Mapping[str, Any], vary: Sequence[str]) -> ArmParts:
    """Return the parts of the arm of a run, without the settings in ``vary``."""
    other = set(run["differs"]) - {PLACEMENT, *vary}
    differs = {key: run["differs"][key] for key in other}
    return ArmParts(arm_of(run).norm, run["placement"], json.dumps(differs, sort_keys=True))


def name_of_arm(run: Mapping[str, Any], without: Iterable[str]) -> ArmName:
    """Return the name of the arm of a run, without the settings in ``without``."""
    short = arm_of(run).short_title(without)
    return ArmName(f"{short}, {run['placement']}", short)


def name_arms(
    tables: Sequence[pd.DataFrame],
    labels: Mapping[str, str],
    vary: Sequence[str] = (),
    declared: Mapping[str, str] | None = None,
    without: str = "",
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Add the columns ``arm``, ``short`` and ``id`` to tables of runs with and without a result.

    Args:
        labels: new names, by one of the :func:`names_in_files` of an arm.
        declared: the new names of a study file, some of whose arms may have no runs yet.
        without: a key that is no part of an arm, so that runs with several values of it are one.

    Returns:
        The settings that all arms share, and the keys that names omit: these and those of ``vary``,
        unless two arms differ only in these.

    Raises:
        CommandError: a key of ``labels`` does not name exactly one arm, or its value is the name of
            another arm or would be read as the difference of two.
    """
    every = pd.concat([table[ARM_COLUMNS] for table in tables], ignore_index=True)
    every["differs"] = [{k: of[k] for k in of if k != without} for of in every["differs"]]
    arms = {(run["norm"], run["placement"]): run for run in every.to_dict("records")}
    common = common_changes(run["differs"] for run in arms.values())
    omitted = (*common, *vary)
    names = {key: name_of_arm(run, omitted) for key, run in arms.items()}
    if len(set(names.values())) < len(arms):
        vary, omitted = (), tuple(common)
        names = {key: name_of_arm(run, omitted) for key, run in arms.items()}
    known = {key: names_in_files(run, common, vary) for key, run in arms.items()}
    ids, declared = names, declared or {}
    for old, new in (*declared.items(), *labels.items()):
        rows = {names[key] for key in names if old == names[key].name or old in known[key]}
        if not rows and old in declared:
            continue
        where = f"--label {old}={new}" if old in labels else f"label {new!r} of the study file"
        if len(rows) != 1:
            choices = sorted({each.name for each in (rows or names.values())})
            raise CommandError(
                f"{where}: {old} is the name of {len(rows)} rows; choose from {'; '.join(choices)}"
            )
        if MINUS in new:
            raise CommandError(f"{where}: {MINUS!r} separates the arms of a difference; omit it")
        if any(each.name == new for each in names.values() if each not in rows):
            raise CommandError(f"{where}: another arm is {new} already; choose another label")
        names = {key: ArmName(new, new) if each in rows else each for key, each in names.items()}
    for table in tables:
        of_runs = list(zip(table["norm"], table["placement"]))
        table["arm"] = [names[key].name for key in of_runs]
        table["short"] = [names[key].short for key in of_runs]
        table["id"] = [ids[key].name for key in of_runs]
    return common, omitted


def names_in_files(run: Mapping[str, Any], common: Iterable[str], vary: Iterable[str]) -> set[str]:
    """Return the names by which a study file may mean the arm of a run.

    They are that of its files, with and without the settings that all arms share, and those that
    vary.
    """
    return {arm_of(run).file_name(keys) for keys in ((), common, vary, (*common, *vary))}
