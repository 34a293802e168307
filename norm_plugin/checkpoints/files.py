"""Checkpoints on disk: loading, saving, their numbers, and repair after a kill.

fairseq writes the first file of a save atomically and then *copies* it to checkpoint_best.pt and
checkpoint_last.pt. A kill during a copy leaves a truncated file behind, and the next fairseq-train
in that folder crashes on it. So before each run:

    python -m norm_plugin.checkpoints.files repair CHECKPOINT_DIR
"""

from __future__ import annotations

import argparse
import pickle
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from norm_plugin.commands.command_line import CommandError, replacing, run_command
from norm_plugin.models.stored_settings import UnsafeSettingError, check_settings

State = dict[str, Any]

LAST = "checkpoint_last.pt"
# kind: the name that fairseq gives, its last group being the number of epochs or of updates
NAMES = {
    "epoch": re.compile(r"checkpoint(\d+)\.pt"),
    "update": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
}
TEMPORARY = re.compile(r".+\.pt(\.\d+)?\.tmp")  # fairseq's and ours
FOLDED = "folded_norms"  # an entry of what norm_plugin.checkpoints.fold writes
PICKLE_START = b"\x80"  # torch before 1.6 wrote a bare pickle, not an archive

# All that torch.load raises for a file that is no checkpoint, or only a part of one.
UNREADABLE = (
    OSError,
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


def load_checkpoint(path: Path) -> State:
    """The content of a fairseq checkpoint, tensors on the CPU, by torch's safe loader.

    Raises CommandError that names a file which is missing, unreadable or no checkpoint, or of
    which a setting would run as code.
    """
    if not path.is_file():
        raise CommandError(f"checkpoint {path} does not exist")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise CommandError(
            f"checkpoint {path} cannot be read, it may be truncated or damaged ({reason})"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CommandError(f"{path} is not a fairseq checkpoint: it has no entry 'model'")
    try:
        check_settings(state.get("cfg"), path)
        check_settings(state.get("args"), path)
    except UnsafeSettingError as error:
        raise CommandError(str(error)) from error
    return state


def save_checkpoint(state: State, path: Path) -> None:
    """Write a checkpoint whole or not at all; raises CommandError, the old file kept."""
    with replacing(path) as stream:
        torch.save(state, stream)


def num_updates(state: State) -> int | None:
    """Updates that the checkpoint has seen; None where it does not say."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates")


def numbered_checkpoints(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """``(number, path)`` of a folder's checkpoints of a kind, "epoch" or "update", newest first."""
    if not folder.is_dir():
        raise CommandError(f"checkpoint folder {folder} does not exist")
    matches = ((NAMES[kind].fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(((int(match.group(1)), path) for match, path in matches if match), reverse=True)


def repair(folder: Path) -> list[str]:
    """Make ``folder`` fit for resuming; returns a line for each thing done, none if all is well.

    Left-over temporaries and truncated checkpoints are removed. Where checkpoint_last.pt is
    missing or damaged, the readable checkpoint with the most updates takes its place. A file that
    cannot be loaded for another reason (no permission, a class that the safe loader refuses) is
    an CommandError and stays as it is.
    """
    if not folder.is_dir():
        return []
    try:
        messages = _remove_leftovers(folder) + _remove_truncated(folder)
        messages += _restore_last(folder)
    except OSError as error:
        raise CommandError(f"cannot repair {folder}: {error}") from error
    return messages


def _remove_leftovers(folder: Path) -> list[str]:
    leftovers = sorted(path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name))
    for path in leftovers:
        path.unlink()
    return [f"removed {path}, left over from a save that was cut off" for path in leftovers]


def _remove_truncated(folder: Path) -> list[str]:
    truncated = [path for path in _candidates(folder) if not _is_whole(path)]
    for path in truncated:
        path.unlink()
    return [f"removed {path}, which was truncated" for path in truncated]


def _candidates(folder: Path) -> list[Path]:
    """Every checkpoint of the folder but the last, by name."""
    return sorted(path for path in folder.glob("checkpoint*.pt") if path.name != LAST)


def _is_whole(path: Path) -> bool:
    """Whether an archive ends as it should; looks at a few bytes however large the file is."""
    with open(path, "rb") as stream:
        return stream.read(1) == PICKLE_START or zipfile.is_zipfile(stream)


def _restore_last(folder: Path) -> list[str]:
    last = folder / LAST
    state = "missing"
    if last.exists():
        try:
            load_checkpoint(last)
            return []
        except CommandError:
            if _is_whole(last):
                raise
            state = "damaged"
    source, messages = _most_updates(folder)
    if source is not None:
        with open(source, "rb") as origin, replacing(last) as stream:
            shutil.copyfileobj(origin, stream)
        return [*messages, f"{last} was {state}; replaced by {source.name}, the furthest one"]
    if state == "missing":
        return messages
    last.unlink()
    return [*messages, f"removed {last}, which was damaged, with none to replace it"]


def _most_updates(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, and a line for each that cannot be read.

    An average, or a folded one, is none to resume from: it has no state of the optimizer.
    """
    best, most, messages = None, -1, []
    for path in _candidates(folder):
        try:
            state = load_checkpoint(path)
        except CommandError as error:
            messages.append(f"passed over a checkpoint: {error}")
            continue
        updates = num_updates(state)
        made = "averaged_from" in state or FOLDED in state
        if updates is not None and updates > most and not made:
            best, most = path, updates
    return best, messages


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints what was repaired, and nothing when all is well."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.checkpoints.files",
        description="Look after the checkpoints of a run.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    help_text = "replace a truncated checkpoint_last.pt, remove left-over temporaries"
    command = commands.add_parser("repair", help=help_text, description=help_text)
    command.add_argument("folder", type=Path, metavar="DIR", help="the --save-dir of the run")
    args = parser.parse_args(argv)
    for message in repair(args.folder):
        print(f"repair: {message}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_command(main)
