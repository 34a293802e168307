"""A function applied to chunks, in this process or in several, with the results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from prep import child_processes
from prep.messages import PrepError

CHUNK_LINES = 2000
CHUNKS_WAITING = 4  # a worker; more would only fill memory

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Applies a function to chunks, in this process or in several."""

    def __init__(self, pool: Executor | None, count: int) -> None:
        self._pool = pool
        self.count = count

    def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
        """Yield `function(chunk)` for each chunk, in the order of the chunks."""
        if self._pool is None:
            yield from map(function, chunks)
            return
        # Not Executor.map, which reads all chunks at once and lets the results pile up.
        waiting: deque[Future[R]] = deque()
        for chunk in chunks:
            waiting.append(self._pool.submit(function, chunk))
            if len(waiting) > CHUNKS_WAITING * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Start `count` processes for `Workers.map`; with 1 everything stays in this process.

    Raises PrepError if one of them is killed.
    """
    if count == 1:
        yield Workers(None, 1)
        return
    others = set(multiprocessing.active_children())
    # "spawn", so that the workers inherit no open file: a lock ends with this process. Not
    # multiprocessing.Pool, which waits forever for the result of a killed worker.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, _begin_worker, (os.getpid(),))
    try:
        yield Workers(pool, count)
    except BrokenProcessPool:
        raise PrepError(f"one of {count} workers was killed, {child_processes.MEMORY}") from None
    finally:
        # They are idle, or their work is no longer needed.
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    child_processes.end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it


def chunked(items: Iterable[T], size: int = CHUNK_LINES) -> Iterator[list[T]]:
    """Cut an iterable, of lines for one, into lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
