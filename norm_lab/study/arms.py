"""The names of arms, and the parts of an arm."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.labels import norm_of_label, short_label
from norm_lab.run.record import Value, common_changes
from norm_plugin.io.command_line import CommandError

# Names of a flag and of an override. If a run has both, the flag wins, because it comes last.
PLACEMENT_KEYS = ("norm-placement", "model.norm_placement")
ARM_COLUMNS = ["norm", "placement", "differs"]
"""The columns of the runs that name an arm. The others are hundreds, and slow to convert."""


class ArmParts(NamedTuple):
    """The norm of an arm, its placement, and its settings that differ from the experiment's."""

    norm: str
    placement: str
    settings: str


def parts_of_arm(run: Mapping[str, Any], vary: Sequence[str]) -> ArmParts:
    """Return the parts of the arm of a run, without the settings in ``vary``."""
    other = set(run["differs"]) - {*PLACEMENT_KEYS, *vary}
    differs = {key: run["differs"][key] for key in other}
    norm = norm_of_label(run["norm"], run["differs"]).removesuffix(f"-{run['placement']}")
    return ArmParts(norm, run["placement"], json.dumps(differs, sort_keys=True))


def arm_names(
    runs: pd.DataFrame,
    labels: Mapping[str, str],
    vary: Sequence[str] = (),
    declared: Mapping[str, str] | None = None,
) -> tuple[dict[str, Value], dict[tuple[str, str], str]]:
    """Return the settings that all arms share, and the name of each arm, by its norm and placement.

    The names omit these settings, and those of ``vary`` unless two arms differ only in these.

    Args:
        runs: the runs with and without a result.
        labels: new names, by one of the :func:`names_in_files` of an arm.
        declared: the new names of a study file, some of whose arms may have no runs yet.

    Raises:
        CommandError: a key of ``labels`` does not name exactly one arm.
    """
    arms = {(run["norm"], run["placement"]): run for run in runs[ARM_COLUMNS].to_dict("records")}
    common = common_changes(run["differs"] for run in arms.values())
    short = {key: label_without(run, (*common, *vary)) for key, run in arms.items()}
    if len({(name, placement) for (_, placement), name in short.items()}) < len(arms):
        vary = ()
        short = {key: label_without(run, common) for key, run in arms.items()}
    names = {key: arm_name(label, key[1]) for key, label in short.items()}
    known = {key: names_in_files(run, common, vary) for key, run in arms.items()}
    declared = declared or {}
    for old, new in (*declared.items(), *labels.items()):
        rows = {names[key] for key in names if old == names[key] or old in known[key]}
        if not rows and old in declared:
            continue
        if len(rows) != 1:
            where = f"--label {old}={new}" if old in labels else f"label {new!r} of the study file"
            raise CommandError(
                f"{where}: {old} is the name of {len(rows)} rows; choose from "
                f"{'; '.join(sorted(rows or set(names.values())))}"
            )
        names = {key: new if name in rows else name for key, name in names.items()}
    return common, names


def label_without(run: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the label of a run without these settings."""
    differs = run["differs"]
    return short_label(run["norm"], differs, [key for key in keys if key in differs])


def names_in_files(run: Mapping[str, Any], common: Iterable[str], vary: Iterable[str]) -> set[str]:
    """Return the names by which a study file may mean the arm of a run.

    They are its label with and without the settings that all arms share, and those that vary.
    """
    omitted = ((), common, vary, (*common, *vary))
    return {label_without(run, keys) for keys in omitted}


def arm_name(label: str, placement: str) -> str:
    """Return the name of an arm: ``powernorm-released, pre``.

    The label contains the placement too if that differs from the experiment's.
    """
    return f"{label.removesuffix(f'-{placement}')}, {placement}"
