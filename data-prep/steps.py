"""Reading, checking and writing lines, in one process or in several.

Nothing here holds a whole corpus in memory, and files are written straight into the folder that
is given: `corpus.publish` makes that folder appear all at once. Text is UTF-8 and a line ends at
"\\n" and nowhere else, because characters such as U+2028 occur inside real sentences and would
shift one side of a corpus against the other.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import multiprocessing
import os
import re
import signal
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

from tqdm import tqdm

import children

CHUNK_LINES = 2000
CHUNKS_WAITING = 4  # a worker; more would only fill memory
# Far past every real corpus. Memory grows with a line, time with the square of a word.
LONGEST_LINE = 1 << 20  # bytes
LONGEST_WORD = 1 << 16  # characters
# Python takes four control characters for white space that are none for Moses, and go.
WORD = re.compile(r"[\S\x1c-\x1f]+")
SPLITS = ("train", "valid", "test")

T = TypeVar("T")
R = TypeVar("R")


class PrepError(Exception):
    """Bad input or settings; the message is the one line that the user reads."""


def report(message: str) -> None:
    """Print one line of progress to stderr, above a running progress bar."""
    tqdm.write(message, file=sys.stderr)


@contextmanager
def only_one_process(lock: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `lock`, after waiting for whoever holds it; a kill releases it.

    The processes of `children.run_module` hold it too, so that it is free when they have ended.
    """
    with open(lock, "w") as stream:
        os.set_inheritable(stream.fileno(), True)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process is {doing}; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# ---- reading and checking -------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file (plain or .gz) without their newline.

    Raises PrepError, naming the file and the line, where the file is missing, its gzip stream
    is cut or damaged, or a line is not UTF-8.
    """
    if not path.is_file():
        raise PrepError(f"{path} is missing")
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        yield from decode_lines(stream, str(path))


def decode_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of an open file without their newline; `name` is for the errors."""
    number = 0
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise PrepError(f"{name}, line {number:,}, is longer than {LONGEST_LINE:,} bytes")
            text = line.rstrip(b"\n").decode("utf-8")
            if (
                len(text) > LONGEST_WORD
                and max(map(len, WORD.findall(text)), default=0) > LONGEST_WORD
            ):
                most = f"{LONGEST_WORD:,} characters"
                raise PrepError(f"{name}, line {number:,}, holds a word of more than {most}")
            yield text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PrepError(f"{name} is truncated or damaged after {number:,} lines: {error}") from None
    except UnicodeDecodeError as error:
        raise PrepError(f"{name}, line {number:,}, is not UTF-8: {error}") from None


def count_lines(path: Path) -> int:
    """Number of lines of a text file, plain or .gz."""
    return sum(1 for _ in read_lines(path))


def check_parallel(source: Path, target: Path, expected: int | None = None) -> int:
    """Check that both sides have the same number of lines, at least one, and return it.

    With `expected`, both must have exactly that number. Raises PrepError naming both files and
    both counts.
    """
    counts = count_lines(source), count_lines(target)
    found = f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}"
    if expected is not None and counts != (expected, expected):
        raise PrepError(f"{found}; {expected:,} are expected in each")
    if counts[0] != counts[1]:
        raise PrepError(f"{found}; line N of one must be the translation of line N of the other")
    if counts[0] == 0:
        raise PrepError(f"{source} and {target} are empty")
    return counts[0]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- transforming line by line --------------------------------------------------------------


class Workers:
    """Applies a function to chunks, in order, in this process or in several."""

    def __init__(self, pool: Executor | None, count: int) -> None:
        self._pool = pool
        self.count = count

    def map(self, function: Callable[[T], R], chunks: Iterable[T]) -> Iterator[R]:
        """Yield `function(chunk)` for each chunk, in the order of the chunks."""
        if self._pool is None:
            yield from map(function, chunks)
            return
        # Not Executor.map: it reads all chunks at once, and its results pile up.
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

    Raises PrepError where one of them is killed.
    """
    if count == 1:
        yield Workers(None, 1)
        return
    others = set(multiprocessing.active_children())
    # "spawn", so that the workers inherit no open file: a lock held here ends with us. Not
    # multiprocessing.Pool, which waits for ever for the result of a worker that was killed.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, _begin_worker, (os.getpid(),))
    try:
        yield Workers(pool, count)
    except BrokenProcessPool:
        raise PrepError(f"one of {count} workers was killed, {children.MEMORY}") from None
    finally:
        # They are idle, or work for nobody.
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    children.end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it


def chunked(items: Iterable[T], size: int = CHUNK_LINES) -> Iterator[list[T]]:
    """Cut an iterable, of lines for one, into lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each ended by "\\n"; parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")


def write_mapped(
    function: Callable[[list[str]], list[str]],
    source: Path,
    target: Path,
    workers: Workers,
    label: str,
) -> None:
    """Write `function` of the lines of `source` to `target`, in order, chunk by chunk."""
    results = workers.map(function, chunked(read_lines(source)))
    with tqdm(desc=label, unit=" lines", leave=False, disable=None) as bar:
        written = 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "w", encoding="utf-8", newline="\n") as stream:
            for lines in results:
                stream.writelines(line + "\n" for line in lines)
                bar.update(len(lines))
                written += len(lines)
    report(f"{label}: {written:,} lines")
