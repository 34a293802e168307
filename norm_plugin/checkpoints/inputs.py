"""Checks of the checkpoints to average: all tensors are finite, and each is given once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from norm_plugin.checkpoints.files import State
from norm_plugin.commands.command_line import CommandError

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
                "checkpoints from before that, for instance by --upper-bound"
            )


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise CommandError where two paths lead to one file, or to copies of one."""
    seen: dict[tuple[Any, ...], Path] = {}
    for path in paths:
        for mark in (("file", path.resolve()), ("content", _digest(path))):
            if mark in seen:
                other = seen[mark]
                how = "the same file as" if mark[0] == "file" else "a copy of"
                raise CommandError(
                    f"{path} is {how} {other}: it would count twice in the mean; give each "
                    "checkpoint once (checkpoint_best.pt and checkpoint_last.pt are copies)"
                )
            seen[mark] = path


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise CommandError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    return digest.digest()
