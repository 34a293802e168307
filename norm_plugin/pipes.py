"""What a command does when nobody reads its output any more, as in ``... --list | head``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

CLOSED = 141  # 128 + SIGPIPE, the status that a shell gives to a command ended so


@contextlib.contextmanager
def ending_with_the_reader() -> Iterator[None]:
    """Exit with status 141, and without a word, where the reader of stdout has gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # what is left would fail at Python's own end, with a traceback
    except BrokenPipeError:
        # Python flushes once more when it ends: give it a place to write to
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.exit(CLOSED)
