"""Settings of a configuration as flags of fairseq's commands."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from norm_plugin.declarations.flags import flag_of
from norm_plugin.io.command_line import CommandError

LOGGING = (
    *("aim_repo", "aim_run_hash", "azureml_logging", "log_file", "log_format", "log_interval"),
    *("no_progress_bar", "tensorboard_logdir", "wandb_project"),
)
"""Keys of ``common`` that affect what is logged, not what is trained."""


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
SWITCHED_OFF = ("left_pad_source", "rebuild_batches", "include_index")
"""Settings that are on by default, and whose flag switches them off."""
HALF = ("fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16")
MISSING = "???"
"""omegaconf's mark of a value that the user must give, such as the path of the data."""
KEPT = {"keep_interval_updates": "--last-updates", "keep_last_epochs": "--last-epochs"}
"""The settings that keep checkpoints, and the flag of ``norm-plugin average`` for all of them."""
GENERATION = "generation"
EVALUATION = ("eval_lm", "common_eval")
"""fairseq's groups of settings for fairseq-generate, and for fairseq-eval-lm."""


@cache
def keys_of_groups() -> dict[str, set[str]]:
    """Return the keys of each group that is the same for all trainings, such as ``optimization``.

    Those of the model, the task and other components are their own. The keys are read from
    fairseq's source, as its import takes seconds.
    """
    spec = find_spec("fairseq")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).with_name("dataclass") / "configs.py"
    classes = [each for each in ast.parse(source.read_bytes()).body if type(each) is ast.ClassDef]
    fields = {
        cls.name: {
            ast.unparse(node.target): ast.unparse(node.annotation)
            for node in cls.body
            if isinstance(node, ast.AnnAssign)
        }
        for cls in classes
    }
    groups = fields["FairseqConfig"].items()
    return {group: set(fields[kind]) for group, kind in groups if kind in fields}


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


def averaging_flags(config: Configuration) -> list[str]:
    """Return the flags of ``norm-plugin average`` for all checkpoints that are kept."""
    kept = kept_checkpoints(config)
    return [] if kept is None else [KEPT[kept[0]], str(kept[1])]


def kept_checkpoints(config: Configuration) -> tuple[str, int] | None:
    """Return which of :data:`KEPT` is set and its value; None if the best checkpoint is kept."""
    checkpoint = config["checkpoint"]
    if checkpoint.get("no_epoch_checkpoints"):
        return None
    for key in KEPT:
        if (checkpoint.get(key) or 0) > 0:
            return key, checkpoint[key]
    raise CommandError("no number of checkpoints to keep is set; set checkpoint.keep_last_epochs")


def check_precision_on_cpu(common: Mapping[str, Any]) -> None:
    """Raise CommandError if the settings ``common`` of a run on the CPU are for half precision."""
    half = [key for key in HALF if common.get(key)]
    if half:
        raise CommandError(
            f"{half[0]} needs a GPU, but this run is on the CPU; drop it, or give "
            f"common.{half[0]}=false"
        )


def _group_flags(group: str, config: Configuration) -> list[str]:
    flags: list[str] = []
    for key, value in config.get(group, {}).items():
        if key == "_name":
            flags += [NAME_FLAGS[group], str(value)]
        elif isinstance(value, bool):
            flags += [flag_of(key)] if value != (key in SWITCHED_OFF) else []
        elif isinstance(value, list):
            flags += [flag_of(key), ",".join(map(str, value))]
        elif value is not None and value != MISSING:
            flags += [flag_of(key), str(value)]
    return flags
