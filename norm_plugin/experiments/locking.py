"""One process at a time works in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from norm_plugin.commands.command_line import CommandError


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of ``folder``; gives its file descriptor, for children to hold it too.

    The system releases it when the last process that holds it has ended, however that ends.
    Raises CommandError where another process holds it.
    """
    with open(folder / "lock", "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"{folder} is in use: {what} is going on elsewhere") from error
        yield stream.fileno()


def is_locked(folder: Path) -> bool:
    """Whether a process works in ``folder`` at this moment."""
    try:
        with open(folder / "lock") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
