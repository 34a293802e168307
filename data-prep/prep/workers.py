"""Apply a function to chunks, in one or several processes, with the results in order."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from tqdm import tqdm

from norm_plugin.io.command_line import CommandError

CHUNK_LINES = 2000
CHUNKS_WAITING = 4  # per worker; more would only use memory
PR_SET_PDEATHSIG = 1  # of prctl(2)

T = TypeVar("T")
R = TypeVar("R")


def map_chunks(
    function: Callable[[list[T]], R], items: Iterable[T], workers: int, name: str
) -> Generator[R, None, None]:
    """Yield `function(chunk)` for each chunk of the items, in order, by `workers` processes.

    One worker is this process. A progress bar shows `name`. Close the generator to end the workers.

    Raises:
        CommandError: a worker was killed.
    """
    with tqdm(items, desc=name, unit=" pairs", leave=False, disable=None) as bar:
        iterator = iter(bar)
        chunks = iter(lambda: list(islice(iterator, CHUNK_LINES)), [])
        yield from map(function, chunks) if workers == 1 else _map(function, chunks, workers)


def _map(function: Callable[[list[T]], R], chunks: Iterable[list[T]], workers: int) -> Iterator[R]:
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
