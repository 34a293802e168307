"""What of a run is done: a stamp for each finished stage, with a key of all that it rests on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from norm_plugin.commands.command_line import write_text


def read_stamp(path: Path) -> str | None:
    """The text of a stamp; None where there is none, or a power cut left it empty or zeros."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return None if not text or "\0" in text else text


class Stamps:
    """The stamps in a folder: ``NAME`` of a finished stage, ``NAME.started`` of one begun,
    ``NAME.diverged`` of one that need not be tried again, ``NAME.sources`` of the user's files
    that it rests on, ``NAME.seconds`` of what it took, and
    ``NAME.memory`` of its peak memory in bytes, the largest of all its attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key_of(self, name: str) -> str | None:
        """The key under which a stage was finished; None where it was not."""
        return self._read(name)

    def begun(self, name: str) -> str | None:
        """The key under which a stage was finished, or else begun; None for neither."""
        return self._read(name) or self._read(f"{name}.started")

    def sources(self, name: str) -> dict[str, str] | None:
        """The digests of the user's files with which a stage was begun; None if not stored."""
        text = self._read(f"{name}.sources")
        return None if text is None else dict(json.loads(text))

    def begin(self, name: str, key: str, later: Iterable[str]) -> None:
        """From now on the stage and the ``later`` ones, which rest on it, are not done."""
        for each in (name, *later):
            (self.folder / each).unlink(missing_ok=True)
        (self.folder / f"{name}.diverged").unlink(missing_ok=True)
        if self._read(f"{name}.started") != key:
            (self.folder / f"{name}.memory").unlink(missing_ok=True)
        self.write(f"{name}.started", key)

    def finish(self, name: str, seconds: float) -> None:
        """The stage that was begun is done."""
        self.write(f"{name}.seconds", f"{seconds:.0f}")
        os.replace(self.folder / f"{name}.started", self.folder / name)

    def measured(self, name: str, memory: int) -> None:
        """A command of the stage has taken so many bytes."""
        self.write(f"{name}.memory", str(max(memory, int(self._read(f"{name}.memory") or 0))))

    def diverged(self, name: str, key: str) -> str | None:
        """Why a stage diverged under ``key``; None where it did not."""
        stored = (self._read(f"{name}.diverged") or "").split("\n", 1)
        return stored[1] if len(stored) == 2 and stored[0] == key else None

    def write(self, name: str, text: str) -> None:
        """Replace a stamp, whole or not at all."""
        write_text(self.folder / name, f"{text}\n")

    def _read(self, name: str) -> str | None:
        return read_stamp(self.folder / name)
