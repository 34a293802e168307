"""Make the checkpoints of a killed run fit for resuming.

fairseq writes the first file of a save atomically and then *copies* it to checkpoint_best.pt and
checkpoint_last.pt. A kill during a copy leaves a truncated file behind, and the next fairseq-train
in that folder crashes on it. So before each run:

    norm-plugin repair CHECKPOINT_DIR
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.checkpoints.files import FOLDED, LAST, DamagedError, load_checkpoint, num_updates
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, reading

TEMPORARY = re.compile(r"checkpoint.*\.pt\.tmp|.+\.pt\.\d+\.tmp")  # fairseq's, and ours
ARCHIVE_START = b"PK"
NUMBERED_OR_LAST = re.compile(r"checkpoint(?:_last|_best|\d+|_\d+_\d+)([^.]*)\.pt")
"""Its group is fairseq's ``--checkpoint-suffix``, usually empty."""


def repair(folder: Path) -> list[str]:
    """Make ``folder`` fit for resuming; returns a line for each thing done, none if all is well.

    Left-over temporary files and truncated checkpoints are removed. Where checkpoint_last.pt is
    missing or damaged, the readable checkpoint with the most updates takes its place. A file that
    cannot be loaded for another reason (no permission, a class that the safe loader refuses) stays
    as it is and raises CommandError.
    """
    if not folder.is_dir():
        return []
    try:
        messages = _remove_leftovers(folder) + _remove_truncated(folder)
        for suffix in _suffixes(folder):
            messages += _restore_last(folder, suffix)
    except OSError as error:
        raise CommandError(f"cannot repair {folder}: {error}") from error
    return messages


def _remove_leftovers(folder: Path) -> list[str]:
    leftovers = sorted(path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name))
    for path in leftovers:
        path.unlink()
    return [f"removed {path}, left over from a save that was cut off" for path in leftovers]


def _remove_truncated(folder: Path) -> list[str]:
    truncated = [path for path in _candidates(folder) if _is_truncated(path)]
    for path in truncated:
        path.unlink()
    return [f"removed {path}, which was truncated" for path in truncated]


def _suffix(path: Path) -> str:
    """The ``--checkpoint-suffix`` of the run of a checkpoint, which has a last one of this name."""
    match = NUMBERED_OR_LAST.fullmatch(path.name)
    return match.group(1) if match and _last(path.parent, match.group(1)).exists() else ""


def _suffixes(folder: Path) -> list[str]:
    """The suffixes of the runs in the folder."""
    return sorted({"", *map(_suffix, folder.glob("checkpoint*.pt"))})


def _last(folder: Path, suffix: str) -> Path:
    return folder / LAST.replace(".pt", f"{suffix}.pt")


def _candidates(folder: Path) -> list[Path]:
    """Every checkpoint of the folder but the last ones, by name."""
    paths = folder.glob("checkpoint*.pt")
    return sorted(path for path in paths if path != _last(folder, _suffix(path)))


def _is_truncated(path: Path) -> bool:
    """Whether it is empty, or an archive without its end; looks at a few bytes of it.

    A power cut leaves zeros where a file was made longer and not yet written.
    """
    with open(path, "rb") as stream:
        start = stream.read(len(ARCHIVE_START)).strip(b"\0")
        return not start or (start == ARCHIVE_START and not zipfile.is_zipfile(stream))


def _restore_last(folder: Path, suffix: str) -> list[str]:
    last = _last(folder, suffix)
    state = "missing"
    if last.exists():
        try:
            load_checkpoint(last)
            return []
        except DamagedError:
            state = "damaged"
    source, messages = _most_updates(folder, suffix)
    if source is not None:
        with reading(source) as origin, atomic_write(last) as stream:
            shutil.copyfileobj(origin, stream)
        return [*messages, f"{last} was {state}; replaced by {source.name}, the furthest one"]
    if state == "missing":
        return messages
    last.unlink()
    return [*messages, f"removed {last}, which was damaged, with none to replace it"]


def _most_updates(folder: Path, suffix: str) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, and a line for each that cannot be read.

    Averaged and folded checkpoints do not count: they hold no state of the optimizer.
    """
    best, most, messages = None, -1, []
    for path in _candidates(folder):
        if _suffix(path) != suffix:
            continue
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
        prog="norm-plugin repair",
        description="Replace a truncated checkpoint_last.pt and remove left-over temporary files.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --save-dir of the run")
    args = parser.parse_args(argv)
    for message in repair(args.folder):
        print(f"repair: {message}", file=sys.stderr)
    return 0
