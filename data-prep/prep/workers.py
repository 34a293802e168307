"""Applies a function to chunks, in one or several processes, with the results in order."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from norm_plugin.commands.command_line import CommandError

CHUNK_LINES = 2000
CHUNKS_WAITING = 4  # per worker; more would only use memory
PR_SET_PDEATHSIG = 1  # of prctl(2)

T = TypeVar("T")
R = TypeVar("R")


def map_chunks(
    function: Callable[[list[T]], R], items: Iterable[T], workers: int
) -> Generator[R, None, None]:
    """Yield `function(chunk)` for each chunk of the items, in order, by `workers` processes.

    One worker is this process. Raises CommandError if a worker is killed.
    """
    iterator = iter(items)
    chunks = iter(lambda: list(islice(iterator, CHUNK_LINES)), [])
    if workers == 1:
        yield from map(function, chunks)
        return
    # "spawn", so that workers inherit no open file, and locks end with this process. Not
    # multiprocessing.Pool, which waits forever for the result of a killed worker.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker, (os.getpid(),))
    # Not Executor.map, which reads all chunks at once and accumulates results.
    waiting: deque[Future[R]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(function, chunk))
            if len(waiting) > CHUNKS_WAITING * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise CommandError(
            f"one of {workers} workers was killed, probably because memory ran out; pass a "
            "smaller --workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    """Let this worker end with process `parent`, even if that is killed, and ignore Ctrl-C."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
