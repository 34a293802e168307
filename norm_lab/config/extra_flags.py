"""The flags after ``--`` as settings; they are read here, and nowhere else.

``-- --lr 0.001`` is the setting ``optimization.lr=[0.001]``. fairseq's parser knows the flags, and
its dataclasses their groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from norm_lab.run.flags import NAME_FLAGS, Configuration, keys_of_groups, training_flags
from norm_plugin.declarations.flags import flag_of
from norm_plugin.io.command_line import CommandError

RUN_OPTIONS = {
    "common.seed": "seed=N",
    "model.norm_type": "norm=X",
    "common.user_dir": "--user-dir DIR",
    "checkpoint.save_dir": "--work DIR",
}
"""Settings that affect more than the training, and the option of the run that sets them."""


def settings_of_flags(flags: Sequence[str], config: Configuration) -> Configuration:
    """Return flags of ``fairseq-train`` as settings, by fairseq's groups.

    Args:
        config: the settings of the training without these flags. They determine the components,
            and so the flags that there are.

    Raises:
        CommandError: a flag or its value is unknown, or an option of the run sets it.
    """
    settings: Configuration = {}
    for key, value in (_parse(flags, config) if flags else {}).items():
        group, name = _group_and_name(key, config)
        settings.setdefault(group, {})[name] = value
    return settings


def check_extra_flags(flags: Sequence[str]) -> None:
    """Raise CommandError for a flag after ``--`` that an option of the run must set instead."""
    refused = {
        flag_of(key.rpartition(".")[2]): f"give {o} before the --" for key, o in RUN_OPTIONS.items()
    }
    refused |= dict.fromkeys(("-h", "--help"), "see `fairseq-train --help`")
    for argument in flags:
        flag = argument.partition("=")[0]
        if flag in refused:
            raise CommandError(f"{flag} cannot come after the --: {refused[flag]}")


def check_given_once(settings: Configuration, overrides: Sequence[str]) -> None:
    """Raise CommandError if an override gives a setting that a flag gives too.

    Otherwise the runs of ``optimization.lr=[0.1],[0.2] -- --lr 0.3`` would be one.
    """
    given = {override.lstrip("+~").partition("=")[0]: override for override in overrides}
    for group in settings:
        for name in settings[group]:
            if f"{group}.{name}" in given:
                flag = NAME_FLAGS[group] if name == "_name" else flag_of(name)
                raise CommandError(
                    f"{flag} cannot come after the --: {given[f'{group}.{name}']} sets it in this "
                    "run; give one of the two"
                )


def _parse(flags: Sequence[str], config: Configuration) -> dict[str, Any]:
    """Return the values of the flags, by fairseq's keys."""
    from fairseq.options import parse_args_and_arch

    # a user dir is imported already, and fairseq would look for a relative one in the folder
    without_dir = {**config, "common": {**config.get("common", {}), "user_dir": None}}
    with training_parser() as parser:
        # adds the flags of the task, the model and so on
        parse_args_and_arch(parser, ["DATA", *training_flags(without_dir), *flags])
        for action in parser._actions:
            action.default, action.required = argparse.SUPPRESS, False
        parser._defaults.clear()
        given = vars(parser.parse_args(["DATA", *flags]))
    del given["data"]
    return given


@contextmanager
def training_parser() -> Iterator[argparse.ArgumentParser]:
    """Yield fairseq's parser of ``fairseq-train``; what fails in the block is a CommandError."""
    from fairseq.options import get_training_parser

    import norm_plugin.models  # noqa: F401  registers the architectures that the flags name

    def refuse(message: str) -> NoReturn:
        raise CommandError(f"fairseq-train: {message}")

    parser: argparse.ArgumentParser = get_training_parser()
    parser.error = refuse  # type: ignore[method-assign]
    try:
        yield parser
    except (ImportError, HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        raise CommandError(" ".join(str(error).split())) from error


def _group_and_name(key: str, config: Configuration) -> tuple[str, str]:
    """Return the group of a setting of ``fairseq-train``, and its name in the group."""
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    for group, flag in NAME_FLAGS.items():
        if flag_of(key) == flag:
            return group, "_name"
    for group in ("common", "dataset", "distributed_training", "optimization", "checkpoint", "ema"):
        if key in keys_of_groups()[group]:
            return group, key
    for group in ("task", "criterion", "optimizer", "lr_scheduler"):
        registered = (
            TASK_DATACLASS_REGISTRY if group == "task" else REGISTRIES[group]["dataclass_registry"]
        )
        component = registered.get(config.get(group, {}).get("_name"))
        if component is not None and key in {field.name for field in fields(component)}:
            return group, key
    return "model", key
