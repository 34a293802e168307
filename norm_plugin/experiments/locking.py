"""One process at a time works in a folder."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from norm_plugin.commands.command_line import CommandError

# is_locked holds the lock for a moment, which must not stop a run that begins just then.
ATTEMPTS, BETWEEN = 5, 0.05  # seconds


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of ``folder``; gives its file descriptor, for children to hold it too.

    The system releases it when the last process that holds it has ended, however that ends.
    Raises CommandError where another process holds it.
    """
    with open(folder / "lock", "a") as stream:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == ATTEMPTS - 1:
                    raise CommandError(
                        f"{folder} is in use: {what} is going on elsewhere"
                    ) from error
                time.sleep(BETWEEN)
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
