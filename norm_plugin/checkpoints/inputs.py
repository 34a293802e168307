"""Checks of the checkpoints to average: they are finite, of the same norms, and given once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from norm_plugin.checkpoints.files import State
from norm_plugin.checkpoints.user_dirs import check_user_dir
from norm_plugin.commands.command_line import CommandError, reading
from norm_plugin.models.resuming import differences, plan_of, settings_of, stacks_of

# Buffers of fairseq's adaptive input and softmax that tell a dtype and a device. Their one number
# is what the memory held when the model was built, a NaN for instance, and is never read.
UNREAD = "_float_tensor"


def is_averaged(name: str, value: Any) -> bool:
    """Whether an entry of a model's state becomes a mean, and is not taken from the newest."""
    floating = torch.is_tensor(value) and value.is_floating_point()
    return floating and name.rpartition(".")[2] != UNREAD


def check_finite(path: Path, model: State) -> None:
    """Raise CommandError where a tensor holds a NaN or an infinity."""
    for name, value in model.items():
        if is_averaged(name, value) and not torch.isfinite(value).all():
            raise CommandError(
                f"'{name}' of {path} holds a NaN or an infinity: the run has diverged; give only "
                "checkpoints from before that (average has --upper-bound)"
            )


def differing_norms(path: Path, state: State, other_path: Path, other: State) -> str:
    """How the norms and placements of two checkpoints differ, as their settings say; else empty.

    Many norms have the same entries in the model's state, so these do not tell norms apart.

    Raises:
        CommandError: to compare them, a ``--user-dir`` is needed that was not imported.
    """
    mine, theirs = (settings_of(each) for each in (state, other))
    if mine is None or theirs is None or _of_norms(mine) == _of_norms(theirs):
        return ""
    check_user_dir(state, path)
    check_user_dir(other, other_path)
    try:
        before, here = (plan_of(settings, stacks_of(settings)) for settings in (theirs, mine))
    except ValueError as error:
        raise CommandError(
            f"cannot compare the norms of {path} with those of {other_path}: {error}"
        ) from error
    # Each run may have a schedule and initial weights of its own
    names = (other_path.name, path.name)
    return "; ".join(differences(before, here, anew=True, names=names))


def _of_norms(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k.startswith("norm_") and v is not None}


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise CommandError where two paths lead to one file, or to copies of one."""
    seen: dict[tuple[Any, ...], Path] = {}
    for path in paths:
        for mark in (("file", os.path.realpath(path)), ("content", _digest(path))):
            if mark in seen:
                other = seen[mark]
                how = "the same file as" if mark[0] == "file" else "a copy of"
                raise CommandError(
                    f"{path} is {how} {other}: it would count twice in the mean; give each "
                    "checkpoint once (checkpoint_best.pt and checkpoint_last.pt are copies)"
                )
            seen[mark] = path


def _digest(path: Path) -> bytes:
    with reading(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()
