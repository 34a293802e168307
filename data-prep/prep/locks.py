"""One process at a time in a folder, by a lock file that a kill releases."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prep.messages import report


@contextmanager
def only_one_process(lock: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `lock`; wait while another process holds it.

    The processes of `child_processes.run_module` inherit it, so it is free only when they have
    ended too.
    """
    with open(lock, "w") as stream:
        os.set_inheritable(stream.fileno(), True)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process is {doing}; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
