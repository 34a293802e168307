"""Prepare the checkpoints of a killed run for resuming.

fairseq writes the first file of a save atomically and then *copies* it to checkpoint_best.pt and
checkpoint_last.pt. A kill during a copy leaves a truncated file, on which the next fairseq-train in
that folder crashes. So before each run, and never beside one, whose files would be removed:

    norm-plugin repair CHECKPOINT_DIR
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.checkpoints.files import (
    FOLDED,
    LAST,
    DamagedError,
    load_checkpoint,
    num_updates,
)
from norm_plugin.checkpoints.parsers import repair_parser
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, reading

TEMPORARY = re.compile(r"checkpoint.*\.pt\.tmp|.+\.pt\.[0-9a-f]+\.tmp")  # fairseq's, and ours
ARCHIVE_START = b"PK"
REPLACEMENT = re.compile(r"checkpoint(_best|\d+|_\d+_\d+)\.pt")
"""fairseq's names of checkpoints that may replace the last one."""


def repair(folder: Path) -> list[str]:
    """Prepare ``folder`` for resuming, and return a line for each thing done.

    Leftover temporary files and truncated checkpoints are removed. If checkpoint_last.pt is
    missing or damaged, it is replaced by the readable checkpoint with the most updates.

    Raises:
        CommandError: a file cannot be loaded for another reason (no permission, a class that the
            safe loader refuses); it is not changed.
    """
    if not folder.is_dir():
        return []
    try:
        return [*_remove_leftovers(folder), *_remove_truncated(folder), *_restore_last(folder)]
    except OSError as error:
        raise CommandError(f"cannot repair {folder}: {error}") from error


def _remove_leftovers(folder: Path) -> list[str]:
    leftovers = sorted(path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name))
    for path in leftovers:
        path.unlink()
    return [f"removed {path}, left over from an interrupted save" for path in leftovers]


def _remove_truncated(folder: Path) -> list[str]:
    paths = sorted(path for path in folder.glob("checkpoint*.pt") if path.name != LAST)
    truncated = [path for path in paths if _is_truncated(path)]
    for path in truncated:
        path.unlink()
    return [f"removed {path}, which was truncated" for path in truncated]


def _is_truncated(path: Path) -> bool:
    """Return whether a file is empty, or an archive without its end; reads only a few bytes.

    A power cut leaves zeros where a file was extended but not yet written.
    """
    with open(path, "rb") as stream:
        start = stream.read(len(ARCHIVE_START)).strip(b"\0")
        return not start or (start == ARCHIVE_START and not zipfile.is_zipfile(stream))


def _restore_last(folder: Path) -> list[str]:
    last, state = folder / LAST, "missing"
    if last.exists():
        try:
            load_checkpoint(last)
            return []
        except DamagedError:
            state = "damaged"
    source, messages = _most_updates(folder)
    if source is not None:
        with reading(source) as origin, atomic_write(last) as stream:
            shutil.copyfileobj(origin, stream)
        return [*messages, f"{last} was {state}; replaced by {source.name}, which has most updates"]
    if state == "missing":
        return messages
    last.unlink()
    return [*messages, f"removed {last}, which was damaged; no other checkpoint can replace it"]


def _most_updates(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from, and a line for each that cannot be read.

    Averaged and folded checkpoints do not count: they have no state of the optimizer.
    """
    best, most, messages = None, -1, []
    for path in sorted(path for path in folder.iterdir() if REPLACEMENT.fullmatch(path.name)):
        try:
            state = load_checkpoint(path)
        except CommandError as error:
            messages.append(f"skipped a checkpoint: {error}")
            continue
        updates, made = num_updates(state), "averaged_from" in state or FOLDED in state
        if updates is not None and updates > most and not made:
            best, most = path, updates
    return best, messages


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; print what was repaired, or nothing if nothing was."""
    args = repair_parser().parse_args(argv)
    for message in repair(args.folder):
        print(f"repair: {message}", file=sys.stderr)
    return 0
