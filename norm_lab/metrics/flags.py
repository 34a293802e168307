"""Settings of a configuration as flags of fairseq's commands, and flags as settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from norm_plugin.io.command_line import CommandError

Differences = dict[str, Any]
"""Settings by name."""
LOGGING = (
    *("aim_repo", "aim_run_hash", "azureml_logging", "log_file", "log_format", "log_interval"),
    *("no_progress_bar", "tensorboard_logdir", "wandb_project"),
)
"""Keys of ``common`` that affect what is logged, not what is trained."""


def without_logging(flags: Sequence[str]) -> list[str]:
    """Return flags of ``fairseq-train`` without those of ``LOGGING`` and their values."""
    logging_flags = {"--" + key.replace("_", "-") for key in LOGGING}
    others, is_logging = [], False
    for argument in flags:
        if argument.startswith("--"):
            is_logging = argument.partition("=")[0] in logging_flags
        if not is_logging:
            others.append(argument)
    return others


def without_seed(flags: Sequence[str]) -> list[str]:
    """Return flags of ``fairseq-train`` without ``--seed``; equal for all runs of an arm."""
    place = flags.index("--seed")
    return [*flags[:place], *flags[place + 2 :]]


def flag_settings(flags: Sequence[str]) -> Differences:
    """Return flags of ``fairseq-train`` as settings; a flag without a value is True."""
    values: dict[str, list[str]] = {}
    key = ""
    for argument in without_logging(flags):
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            values[key] = [value] if equals else []
        else:
            values.setdefault(key, []).append(argument)
    return {
        key: True if not given else given[0] if len(given) == 1 else given
        for key, given in values.items()
    }


Configuration = dict[str, dict[str, Any]]
"""The settings of each of fairseq's groups."""
NAME_FLAGS = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
"""The flag for ``_name`` in each of fairseq's groups."""
GENERATION = "generation"
EVALUATION = ("eval_lm", "common_eval")
"""fairseq's groups of settings for fairseq-generate, and for fairseq-eval-lm."""


def training_flags(config: Configuration) -> list[str]:
    """Return the flags of ``fairseq-train`` for a configuration."""
    groups = (group for group in config if group not in (GENERATION, *EVALUATION))
    return [flag for group in groups for flag in _group_flags(group, config)]


def generation_flags(config: Configuration) -> list[str]:
    """Return the flags of ``fairseq-generate`` for a configuration."""
    return _group_flags(GENERATION, config)


def evaluation_flags(config: Configuration) -> list[str]:
    """Return the flags of ``fairseq-eval-lm`` for a configuration."""
    return [flag for group in EVALUATION for flag in _group_flags(group, config)]


def averaging_flags(config: Configuration, extra_flags: Sequence[str] = ()) -> list[str]:
    """Return the flags of ``norm-plugin average`` for all checkpoints that are kept.

    Args:
        extra_flags: flags of ``fairseq-train`` that come after those of ``config``.
    """
    checkpoint = config["checkpoint"]
    if checkpoint.get("no_epoch_checkpoints"):  # the best checkpoint is evaluated
        return []
    names = ("keep_interval_updates", "keep_last_epochs")
    updates, epochs = last_values(extra_flags, {name: checkpoint.get(name, -1) for name in names})
    if updates > 0:
        return ["--last-updates", str(updates)]
    if epochs > 0:
        return ["--last-epochs", str(epochs)]
    raise CommandError("no number of checkpoints to keep is set; set checkpoint.keep_last_epochs")


def last_values(flags: Sequence[str], defaults: dict[str, Any]) -> list[Any]:
    """Return the last integer value of each flag in ``defaults``, or its default."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in defaults.items():
        parser.add_argument(flag_of(name), type=int, default=default)
    values = vars(parser.parse_known_args(list(flags))[0])
    return [values[name] for name in defaults]


def _group_flags(group: str, config: Configuration) -> list[str]:
    from omegaconf import MISSING  # not needed by the process that supervises runs

    flags: list[str] = []
    for key, value in config.get(group, {}).items():
        if key == "_name":
            flags += [NAME_FLAGS[group], str(value)]
        elif value is True:
            flags.append(flag_of(key))
        elif isinstance(value, list):
            flags += [flag_of(key), ",".join(map(str, value))]
        elif value is not None and value is not False and value != MISSING:
            flags += [flag_of(key), str(value)]
    return flags


def flag_of(key: str) -> str:
    """Return the flag of a setting: ``--max-tokens`` for ``max_tokens``."""
    return "--" + key.replace("_", "-")
