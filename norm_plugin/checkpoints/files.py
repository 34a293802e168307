"""Checkpoints on disk: loading, saving, and the numbers in their names."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, reading
from norm_plugin.io.stored_settings import UnsafeSettingError
from norm_plugin.models.safe_loading import (
    RefusedContentError,
    allow_stored_classes,
    read_state,
)

State = dict[str, Any]

LAST = "checkpoint_last.pt"
FOLDED = "folded_norms"  # an entry that norm_plugin.checkpoints.fold writes

# Everything that torch.load raises for a file that is not a checkpoint, or only part of one.
LOAD_ERRORS = (
    RuntimeError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)
# Buffers of fairseq's adaptive input and softmax that only carry a dtype and a device. Their one
# value is uninitialized memory, for example NaN, and is never read.
UNUSED_BUFFER = "_float_tensor"
PICKLE_START = b"\x80"  # torch before 1.6 wrote a bare pickle, not an archive


class DamagedError(CommandError):
    """Raised for a checkpoint that was cut off, or whose bytes changed after it was written."""


def load_checkpoint(path: Path) -> State:
    """Load a fairseq checkpoint, tensors on the CPU, by torch's safe loader.

    Raises:
        CommandError: the file is missing, unreadable or not a checkpoint, contains a class or
            function that the loader refuses, or a setting of it would run as code.
        DamagedError: the archive is not as it was written.
    """
    allow_stored_classes()
    with reading(path) as stream:
        try:
            _check_archive(stream)
        except LOAD_ERRORS as error:
            raise DamagedError(f"checkpoint {path} is truncated or damaged ({error})") from error
        try:
            state = read_state(stream, path)
        except (RefusedContentError, UnsafeSettingError) as error:
            raise CommandError(str(error)) from error
        except LOAD_ERRORS as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise CommandError(
                f"checkpoint {path} cannot be read; it may be truncated or damaged ({reason})"
            ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CommandError(f"{path} is not a fairseq checkpoint: it has no entry 'model'")
    return state


def _check_archive(stream: BinaryIO) -> None:
    """Raise one of LOAD_ERRORS if an entry's checksum is wrong, which torch does not check."""
    if stream.read(1) != PICKLE_START:
        with zipfile.ZipFile(stream) as archive:
            # torch compresses nothing, and skips the content of entries marked as folders
            if any(entry.compress_type or entry.external_attr for entry in archive.infolist()):
                raise zipfile.BadZipFile("it has an entry that torch has not written")
            if name := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {name} is wrong")
    stream.seek(0)


def save_checkpoint(state: State, path: Path) -> None:
    """Write a checkpoint atomically; after a CommandError the old file is unchanged."""
    with atomic_write(path) as stream:
        torch.save(state, stream)


def num_updates(state: State) -> int | None:
    """Return the number of updates of a checkpoint; None if it has no such entry."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def is_averaged(name: str, value: Any) -> bool:
    """Return whether an entry of a model's state is averaged, not taken from the newest."""
    floating = torch.is_tensor(value) and value.is_floating_point()
    return floating and name.rpartition(".")[2] != UNUSED_BUFFER


def check_finite(path: Path, model: State) -> None:
    """Raise CommandError if a tensor contains a NaN or an infinity."""
    for name, value in model.items():
        if is_averaged(name, value) and not torch.isfinite(value).all():
            raise CommandError(
                f"'{name}' of {path} has NaN or infinite values: the run has diverged; give only "
                "checkpoints from before that (average has --upper-bound)"
            )
