"""Check the flags of a training before any file is written.

fairseq's parser reads them, and each norm of the model is built once.
"""

from __future__ import annotations

import logging
import math
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from norm_lab.config.extra_flags import training_parser
from norm_lab.run.flags import (
    EVALUATION,
    GENERATION,
    MISSING,
    NAME_FLAGS,
    Configuration,
    kept_checkpoints,
    keys_of_groups,
    training_flags,
)
from norm_lab.run.record import placement_name
from norm_plugin.declarations.flags import flag_of
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.stored_settings import PROGRAMS, is_data
from norm_plugin.io.user_dirs import PACKAGE as PLUGIN

HYPERPARAMETERS = frozenset(
    (
        # common, distributed_training
        *("amp", "amp_batch_retries", "amp_init_scale", "amp_scale_window", "bf16", "cpu", "fp16"),
        *("fp16_init_scale", "fp16_scale_tolerance", "fp16_scale_window", "log_format"),
        *("log_interval", "memory_efficient_bf16", "memory_efficient_fp16", "min_loss_scale"),
        *("no_progress_bar", "save_dir", "seed", "threshold_loss_scale", "user_dir"),
        *("ddp_backend", "broadcast_buffers", "bucket_cap_mb", "find_unused_parameters"),
        # dataset, optimization
        *("batch_size", "batch_size_valid", "curriculum", "disable_validation"),
        *("fixed_validation_seed", "grouped_shuffling", "max_tokens", "max_tokens_valid"),
        *("max_valid_steps", "num_workers", "required_batch_size_multiple"),
        *("required_seq_len_multiple", "skip_invalid_size_inputs_valid_test"),
        *("update_epoch_batch_itr", "update_ordered_indices_seed", "validate_after_updates"),
        *("validate_interval", "validate_interval_updates", "clip_norm", "lr", "max_epoch"),
        *("max_update", "sentence_avg", "skip_remainder_batch", "stop_min_lr"),
        *("stop_time_hours", "update_freq"),
        # checkpoint, ema
        *("best_checkpoint_metric", "keep_best_checkpoints", "keep_interval_updates"),
        *("keep_interval_updates_pattern", "keep_last_epochs", "maximize_best_checkpoint_metric"),
        *("no_epoch_checkpoints", "no_save_optimizer_state", "patience", "save_interval"),
        *("save_interval_updates", "ema_decay", "ema_fp32", "ema_start_update"),
        *("ema_update_freq", "store_ema"),
        # generation, eval_lm, common_eval
        *("beam", "diverse_beam_groups", "diverse_beam_strength", "lenpen", "match_source_len"),
        *("max_len_a", "max_len_b", "min_len", "no_early_stop", "no_repeat_ngram_size"),
        *("sampling", "sampling_topk", "sampling_topp", "temperature", "unkpen", "unnormalized"),
        *("context_window", "softmax_batch", "model_overrides"),
    )
)
"""The keys of fairseq's own groups that files and overrides may set. Others name files, programs,
servers or what is scored."""
FILES = {"norm_record_file", *PROGRAMS}
"""Settings of components that name a file or a program."""
WORD = re.compile(r"[A-Za-z][\w.,-]*", re.ASCII)


def check_hyperparameters(config: Configuration, user_dir: Path | None) -> None:
    """Raise CommandError if a file or an override sets more than a hyperparameter.

    Allowed are :data:`HYPERPARAMETERS`, and the options of the model, the task, the criterion, the
    optimizer and the schedule. Values are numbers, words and literals without a path.

    Args:
        user_dir: the user's own ``--user-dir``, which replaces that of a file.
    """
    of_groups = set().union(*keys_of_groups().values())
    for group, settings in config.items():
        if not isinstance(settings, dict):
            raise CommandError(
                f"{group} is {str(settings)[:60]!r}, but a setting is in a group of fairseq: "
                f"GROUP.{group}=..."
            )
        for key, value in settings.items():
            if value is None or value is False or value == MISSING:
                continue  # no flag
            is_option = group in NAME_FLAGS and (
                key == "_name" or (key.isidentifier() and key not in of_groups | FILES)
            )
            imports = key == "user_dir" and value != PLUGIN
            allowed = (is_option or key in HYPERPARAMETERS) and _is_plain(value) and not imports
            if allowed or (imports and user_dir is not None):
                continue
            instead = "--user-dir DIR" if imports else f"{flag_of(key)} after --"
            raise CommandError(
                f"{group}.{key} is {str(value)[:60]!r}, but files and overrides set "
                "hyperparameters only, to numbers, words or literals without a path; drop it, or "
                f"give {instead}"
            )


def _is_plain(value: Any) -> bool:
    """Return whether fairseq can neither run a value nor find a file by it."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str) and not WORD.fullmatch(value):
        return is_data(value) and not re.search(r"[/\\~$]", value)
    return isinstance(value, (str, bool, int, float))


def check_composed(config: Configuration, base: Configuration) -> None:
    """Raise CommandError for settings of a training that would not be what they say.

    Args:
        config: the settings of the training.
        base: those of the experiment.
    """
    keys: dict[str, str] = {}
    for group in config:
        for flag in [each for each in training_flags({group: config[group]}) if each[:2] == "--"]:
            other = keys.setdefault(flag, group)
            if other != group:  # fairseq's command line would take the last one
                name = flag[2:].replace("-", "_")
                raise CommandError(
                    f"{other}.{name} and {group}.{name} are the same flag, {flag}; drop one of them"
                )
    groups = keys_of_groups()
    for group, settings in config.items():
        for key in sorted(settings.keys() & HYPERPARAMETERS):
            owners = [each for each in groups if key in groups[each]]
            if group not in (*owners, GENERATION, *EVALUATION):  # we read it from its own group
                raise CommandError(f"{group} has no setting {key}; give {owners[0]}.{key}")
    for key in ("source_lang", "target_lang"):
        value, expected = config["task"].get(key), base["task"].get(key)
        if value != expected:
            raise CommandError(
                f"task.{key} is {value}, but the corpus is prepared and scored for {expected}; "
                "drop it, or write a file of the corpus for the other direction"
            )
    wrong = [
        f"{group}.{key}"
        for group, settings in config.items()
        for key, value in settings.items()
        for each in (value if isinstance(value, list) else [value])
        if isinstance(each, float) and not math.isfinite(each)
    ]
    if wrong:  # a result is JSON, which has no other numbers
        raise CommandError(f"{wrong[0]} is not a finite number; give one")


def check_number_averaged(config: Configuration) -> None:
    """Raise CommandError if a training saves fewer checkpoints than are averaged."""
    kept = kept_checkpoints(config)
    if kept is None:
        return
    optimization, (key, count) = config["optimization"], kept
    if key == "keep_last_epochs":
        name, length = "max_epoch", optimization.get("max_epoch") or 0
        checkpoints = length
    else:
        name, length = "max_update", optimization.get("max_update") or 0
        checkpoints = length // max(config["checkpoint"].get("save_interval_updates") or 0, 1)
    if length > 0 and checkpoints < count:
        raise CommandError(
            f"{flag_of(name)} {length} saves {checkpoints} checkpoints, but {count} are averaged: "
            f"train longer, or keep fewer by {flag_of(key)}"
        )


@lru_cache
def check_training(flags: tuple[str, ...]) -> str:
    """Parse the flags of ``fairseq-train`` and build each norm of the model, without data.

    Returns:
        The placement of the norms: ``pre``, or ``encoder pre, decoder post``.

    Raises:
        CommandError: a flag or choice is unknown, a value has the wrong type, no chosen norm has an
            option or the norm refuses its value, or flags contradict each other.
    """
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.options import parse_args_and_arch

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # hide messages about its imports
    with training_parser() as parser:
        args = parse_args_and_arch(parser, ["DATA", *flags])
        _check_names_of_flags(parser, flags)
        convert_namespace_to_omegaconf(args)
        placement = _check_norms(args)
    if args.lr_scheduler == "inverse_sqrt" and not args.warmup_updates:
        raise CommandError(
            "--lr-scheduler inverse_sqrt divides by --warmup-updates, which is 0: for no warm-up, "
            "give --warmup-init-lr the value of --lr, or choose --lr-scheduler fixed"
        )
    return placement


def _check_names_of_flags(parser: ArgumentParser, flags: Sequence[str]) -> None:
    """Raise CommandError if a setting is given by two names, of which fairseq takes the last."""
    given: dict[str, str] = {}
    for flag in flags:
        action = parser._option_string_actions.get(flag)
        other = flag if action is None else given.setdefault(action.dest, flag)
        if other != flag:
            raise CommandError(f"{other} and {flag} are the same setting; drop one of them")


def _check_norms(args: Any) -> str:
    """Build the norm of every site, which checks its options; return the placement."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.settle import settle

    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, NormModel):  # a model of fairseq or of the user
        return "pre" if getattr(args, "encoder_normalize_before", False) else "post"
    plan = settle(args, model.sides)
    for choice in plan.sites:
        choice.build(getattr(args, f"{choice.site.side}_embed_dim"))
    return placement_name(plan.placement)
