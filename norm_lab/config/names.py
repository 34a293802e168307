"""Names and seeds on a command line, checked at once: this imports neither torch nor fairseq.

What is left, the values of hyperparameters, is checked when the runs are composed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from norm_lab.config.experiments import experiment_names, is_experiment
from norm_lab.config.options import Request, norm_keys
from norm_lab.config.studies import study_names, study_path
from norm_plugin.declarations.reading import read_norms, read_placements
from norm_plugin.io.command_line import CommandError, did_you_mean, usage_errors

CHOICES = ("norm", "seed", "preset", "recipe", "subword")
"""Overrides that choose the run; the others change hyperparameters."""
SEED = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_SEED = 2**31 - 1  # numpy takes 32 bits, and fairseq adds the number of the epoch
NORM_KEY = re.compile(r"(model\.)?norm_")
PLAIN = re.compile(r"[\w-]+(,[\w-]+)*")
"""Values without quotes and functions of hydra's syntax."""


@usage_errors()
def check_names(request: Request) -> None:
    """Raise CommandError for an unknown experiment, key, norm or placement, or an invalid seed.

    The norms and placements of a ``--user-dir`` are not known here.
    """
    check_experiment(request.experiment)
    known: dict[str, Collection[str]] = {"norm": read_norms(), "placement": read_placements()}
    for key, value in request.overrides.items():
        of_norms = NORM_KEY.match(key) is not None
        if key.startswith(("+", "~")) or ("." in key and not of_norms):
            continue  # a setting
        keys = sorted(norm_keys()) if of_norms else [*CHOICES, "placement", "size"]
        key = key.removeprefix("model.")
        if key not in keys and not (of_norms and request.user_dir):
            raise CommandError(f"unknown key {key}; {did_you_mean(key, keys)}")
        names = value.split(",") if value and PLAIN.fullmatch(value) else []
        for name in names:
            if key == "seed":
                read_seed(name)
            elif key in known and request.user_dir is None:
                check_registered(key, name, known[key])


def check_registered(kind: str, name: str, known: Collection[str]) -> None:
    """Raise CommandError for an unknown norm or placement."""
    if name not in known:
        raise CommandError(
            f"unknown {kind} {name!r}; {did_you_mean(name, known)} One of your own needs "
            "--user-dir with the folder that registers it"
        )


def check_experiment(name: str) -> None:
    """Raise CommandError if there is no experiment or study with this name or path."""
    if is_experiment(name) or study_path(name).is_file():
        return
    hint = did_you_mean(name, [*experiment_names(), *study_names()])
    if hint.startswith("choose"):  # nothing is like it
        if name.endswith(".yaml"):
            raise CommandError(f"the file {name} does not exist")
        hint = f"choose an experiment from {', '.join(experiment_names())}, or a study of studies/."
    raise CommandError(
        f"there is no experiment or study {name}; {hint} It may also be the folder of a study, or "
        "the path of a file NAME.yaml"
    )


@usage_errors()
def check_is_study(name: str) -> None:
    """Raise CommandError for an experiment that is no study, which has a file of its own."""
    if not study_path(name).is_file():
        raise CommandError(
            f"{name} is an experiment, not a study; give the name of a folder of studies/, or a "
            "file of your own"
        )


def read_seed(text: str) -> int:
    """Return a seed as a number; raise CommandError if it is not a valid one."""
    if not SEED.fullmatch(text) or int(text) > MAX_SEED:
        raise CommandError(f"seed is {text}; it must be an integer from 0 to {MAX_SEED}")
    return int(text)
