"""Settings that come from a file are data: none of them may run as code.

torch's safe loader prevents a checkpoint from running code while it is read. fairseq then passes
some of its settings to ``eval`` when it builds a model, a criterion or an optimizer, and others
when it parses its flags, so that a file from elsewhere could run anything. Here every checkpoint is
checked first, and so are the flags of a run, which come from its study, its YAML files and its
overrides: a setting that fairseq evaluates must be a literal.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from typing import Any

from omegaconf import OmegaConf

# The names of what fairseq passes to eval, eval_str_list, eval_str_dict or eval_bool, also in the
# types of its flags; a test finds them in its source.
EVALUATED = frozenset(
    (
        *("adafactor_eps", "adam_betas", "adamax_betas", "adaptive_input_cutoff"),
        *("adaptive_softmax_cutoff", "character_filters", "conv_aggregator_layers"),
        *("conv_feature_layers", "decoder_attention", "decoder_glu", "decoder_kernel_size_list"),
        *("decoder_layers", "downsample", "encoder_attention", "encoder_glu"),
        *("encoder_kernel_size_list", "encoder_layers", "extra_data", "extra_lang_pairs"),
        *("feature_encoder_spec", "gated_attention", "lamb_betas", "langtoks", "left_pad_source"),
        *("left_pad_target", "model_overrides", "pipeline_balance", "pipeline_decoder_balance"),
        *("pipeline_decoder_devices", "pipeline_devices", "pipeline_encoder_balance"),
        *("pipeline_encoder_devices", "pretrained", "project_input", "sampling_weights"),
        *("self_attention", "weight_softmax", "wer_args", "xformers_att_config"),
    )
)
PROGRAMS = frozenset(("post_save_script",))  # fairseq runs the program that they name
USER_DIR = "user_dir"  # fairseq imports this folder
SIDES = ("encoder_", "decoder_")  # fairseq treats a flag with this prefix as a setting of one side


class UnsafeSettingError(ValueError):
    """Raised if a stored setting would run as code; the message names the file and the setting."""


def check_settings(settings: Any, file: object) -> None:
    """Raise UnsafeSettingError if a setting that fairseq evaluates is not a literal.

    Args:
        settings: the entry ``cfg`` or ``args`` of a checkpoint, a mapping or a Namespace.
        file: their source, for the error.
    """
    for key, value in _every_setting(settings):
        name = key.rpartition(".")[2]
        if not _is_safe({name, *_without_side(name)}, value):
            raise UnsafeSettingError(
                f"{file}: its setting {key} {_would_run(value)} are taken from a checkpoint"
            )


def check_flags(flags: Sequence[str], user_dirs: Container[str | None]) -> None:
    """Raise UnsafeSettingError if a flag would run code that the user did not choose.

    A flag that fairseq evaluates must be a literal. An abbreviated flag counts as every flag that
    it may abbreviate, since argparse accepts it.

    Args:
        user_dirs: the allowed values of ``--user-dir``, since fairseq imports it.
    """
    known = EVALUATED | PROGRAMS | {USER_DIR}
    for flag, following in zip(flags, (*flags[1:], "None")):
        if not flag.startswith("--"):
            continue
        given, equals, value = flag[2:].partition("=")
        name = given.replace("-", "_")
        names = [each for each in (name, *_without_side(name)) if each]
        meant = {each for each in known if any(map(each.startswith, names))}
        if not equals:  # argparse never treats text with a space as a flag
            is_flag = following.startswith("--") and " " not in following
            value = "None" if is_flag else following
        if USER_DIR in meant and value not in user_dirs:
            raise UnsafeSettingError(
                f"--{given} is {value!r}, and importing it would run its code; a file may not set "
                f"it: give it as an option of the command, --user-dir {value}"
            )
        if not _is_safe(meant, value):
            raise UnsafeSettingError(f"--{given} {_would_run(value)} are allowed")


def _without_side(name: str) -> list[str]:
    return [name[len(side) :] for side in SIDES if name.startswith(side)]


def _is_safe(names: Set[str], value: Any) -> bool:
    """Return whether fairseq runs no code for a setting with one of these names."""
    return not (names & EVALUATED and not is_data(value)) and not (
        names & PROGRAMS and value not in (None, "None")
    )


def _would_run(value: Any) -> str:
    return (
        f"is {str(value)[:60]!r}, which fairseq would run as Python code or as a program; only "
        "literals, such as (0.9, 0.98),"
    )


def _every_setting(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key, nested ones included."""
    pending, seen = [("", settings)], set()
    while pending:
        key, value = pending.pop()
        yield key, value
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        if not isinstance(value, (Mapping, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))  # a pickle may contain itself
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        pending += [(f"{key}.{name}" if key else str(name), inner) for name, inner in items]


def is_data(value: Any) -> bool:
    """Return whether ``eval`` would refuse a value, or finds only a literal in it."""
    if isinstance(value, str):
        try:
            return _is_literal(ast.parse(value.strip(), mode="eval").body)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
    return value is None or isinstance(value, (bool, int, float, list, tuple, dict))


def _is_literal(node: ast.expr) -> bool:
    """Accept what ast.literal_eval does, and sums: ``[(512, 10, 5)] + [(512, 3, 2)] * 4``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_literal(node.left) and _is_literal(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return (
            isinstance(node.left, (ast.List, ast.Tuple))
            and _is_literal(node.left)
            and isinstance(node.right, ast.Constant)
            and type(node.right.value) is int
        )
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


def plain(settings: Any) -> Any:
    """Return stored settings as dictionaries and lists, if they are an OmegaConf configuration.

    ``${...}`` is not resolved: it is no literal, but names a value, which may not be one either.
    """
    if OmegaConf.is_config(settings):
        return OmegaConf.to_container(settings, resolve=False)
    return settings
