"""Names and seeds on a command line, checked at once: this imports neither torch nor fairseq.

What is left, the values of hyperparameters, is checked when the runs are composed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from norm_lab.config.experiments import experiment_names
from norm_lab.config.options import Request
from norm_lab.config.studies import study_names, study_path
from norm_plugin.declarations.reading import read_norms, read_placements
from norm_plugin.io.command_line import CommandError, did_you_mean, usage_errors

CHOICES = ("norm", "seed", "preset", "recipe", "subword")
"""Overrides that choose the run; the others change hyperparameters."""
SEED = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_SEED = 2**31 - 1  # numpy takes 32 bits, and fairseq adds the number of the epoch
PLAIN = re.compile(r"[\w-]+(,[\w-]+)*")
"""Values without quotes and functions of hydra's syntax."""


@usage_errors()
def check_names(request: Request) -> None:
    """Raise CommandError for an unknown experiment, key, norm or placement, or an invalid seed.

    The norms and placements of a ``--user-dir`` are not known here.
    """
    check_experiment(request.experiment)
    known: dict[str, Collection[str]] = {"norm": read_norms(), "placement": read_placements()}
    for override in request.overrides:
        key, _, value = override.partition("=")
        if "." in key or key.startswith(("+", "~", "norm_")):
            continue  # a setting
        keys = (*CHOICES, "placement", "size")
        if key not in keys:
            raise CommandError(f"unknown key {key}; {did_you_mean(key, keys)}")
        names = value.split(",") if PLAIN.fullmatch(value) else []
        for name in names:
            if key == "seed":
                read_seed(name)
            elif key in known and request.user_dir is None and name not in known[key]:
                raise CommandError(
                    f"unknown {key} {name!r}; {did_you_mean(name, known[key])} One of your own "
                    "needs --user-dir with the folder that registers it"
                )


def check_experiment(name: str) -> None:
    """Raise CommandError if there is no experiment or study with this name or path."""
    if name not in experiment_names() and not study_path(name).is_file():
        raise CommandError(
            f"there is no experiment or study {name}; "
            f"{did_you_mean(name, [*experiment_names(), *study_names()])} It may also be the "
            "folder of a study, or the path of a file NAME.yaml"
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
