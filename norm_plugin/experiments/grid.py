"""The runs of a sweep: a product of values in hydra's syntax, or a file of ``configs/study/``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.facts import experiment_names, is_path
from norm_plugin.experiments.plan import Plan, make_plan
from norm_plugin.experiments.recipes import CONFIGS
from norm_plugin.experiments.settings import parse_overrides, read_settings

STUDIES = CONFIGS / "study"
KEYS = {"experiment", "overrides", "arms"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid: its overrides, and what they come to."""

    experiment: str
    overrides: tuple[str, ...]
    plan: Plan


def read_grid(args: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """The runs that a command line of ``sweep`` asks for, and the overrides for the launcher.

    Every run is checked. Two that come to the same are one. Raises CommandError that names the
    first wrong one, or for a study that cannot be read.
    """
    launcher = [word for word in args.overrides if word.startswith("hydra.")]
    words = [word for word in args.overrides if word not in launcher]
    experiment, arms = _arms(args.experiment, words)
    cells: dict[Any, Cell] = {}
    for overrides in _by_first_key([split(arm) for arm in arms]):
        one = argparse.Namespace(**{**vars(args), "experiment": experiment, "overrides": overrides})
        try:
            plan = make_plan(read_settings(one))
        except CommandError as error:
            raise CommandError(f"{experiment} {' '.join(overrides)}: {error}") from error
        cell = cells.setdefault(plan.result, Cell(experiment, tuple(overrides), plan))
        if cell.plan.training != plan.training:
            raise CommandError(
                f"{experiment} {' '.join(overrides)}: its result would be {plan.result}, which is "
                f"that of {' '.join(cell.overrides)}; give the two runs different names by norm=X, "
                "seed=N or a setting that differs from the recipe"
            )
    return list(cells.values()), launcher


def _arms(name: str, words: Sequence[str]) -> tuple[str, list[list[str]]]:
    """The experiment, and for each arm of the grid its overrides."""
    path = Path(os.path.abspath(name)) if is_path(name) else STUDIES / f"{name}.yaml"
    if name in experiment_names():
        if path.is_file():
            raise CommandError(f"{name} is an experiment too; rename the study {path}")
        return name, [list(words)]
    if is_path(name) and not path.is_file():
        raise CommandError(f"no experiment or study {path}: there is no such file")
    if not path.is_file():
        studies = [file.stem for file in sorted(STUDIES.glob("*.yaml"))]
        names = ", ".join([*experiment_names(), *studies])
        raise CommandError(
            f"no experiment or study {name}; choose from {names}, or give the path of a file "
            "NAME.yaml"
        )
    try:
        study: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    if is_path(name) and isinstance(study, dict) and "corpus" in study:
        return str(path), [list(words)]
    if not isinstance(study, dict) or "experiment" not in study or not set(study) <= KEYS:
        raise CommandError(f"{path} must have the keys {', '.join(sorted(KEYS))} and no others")
    overrides, arms = study.get("overrides", []), study.get("arms", [[]])
    if not (
        _is_list_of_text(overrides) and isinstance(arms, list) and all(map(_is_list_of_text, arms))
    ):
        raise CommandError(
            f"{path}: overrides must be a list of KEY=VALUE, arms a list of such lists"
        )
    shared = [*overrides, *words]
    experiment = study["experiment"]
    if is_path(experiment):
        experiment = str(path.parent / experiment)
    return experiment, [[*shared, *arm] for arm in arms]


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def split(words: Sequence[str]) -> list[list[str]]:
    """The product of the values of overrides, in hydra's syntax."""
    return [list(run) for run in product(*map(_values, parse_overrides(words)))]


def _values(override: Override) -> list[str]:
    """The overrides of one value each that an override with several values stands for."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={text}" for text in override.sweep_string_iterator()]


def _by_first_key(arms: Sequence[Sequence[list[str]]]) -> list[list[str]]:
    """The runs of all arms, those with the first value of the first override first.

    With ``seed=1,2,3`` first, a sweep that is stopped early has whole seeds.
    """
    runs = [run for arm in arms for run in arm]
    firsts = list(dict.fromkeys(run[0] for run in runs if run))
    return sorted(runs, key=lambda run: firsts.index(run[0]) if run else 0)
