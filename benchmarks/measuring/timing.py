"""Measure time and memory.

Calls are timed in alternation, A B A B, so that a change of the machine's speed affects all alike.
"""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

Name = TypeVar("Name")


class Quartiles(NamedTuple):
    """The 25th, 50th and 75th percentile."""

    p25: float
    p50: float
    p75: float

    def rounded(self, digits: int, name: str = "{}_ms") -> dict[str, float]:
        """Return columns of a row; ``name`` makes the column names of p25, p50 and p75."""
        return {name.format(p): round(x, digits) for p, x in self._asdict().items()}


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the quartiles of one or more values, interpolated between them."""
    return Quartiles(*np.percentile(values, [25, 50, 75]).tolist())


def on_cpu(call: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def alternate(
    calls: Mapping[Name, Callable[[], object]],
    repetitions: int,
    warmup: int,
    timed: Callable[[Callable[[], object]], float] = on_cpu,
) -> dict[Name, list[float]]:
    """Return the milliseconds of each call, ``repetitions`` of them, by name.

    Every round makes each call once, in the given order. ``warmup`` rounds are not counted.
    """
    rounds = [[timed(call) for call in calls.values()] for _ in range(warmup + repetitions)]
    return {name: list(times) for name, times in zip(calls, zip(*rounds[warmup:]))}


# ---- memory ---------------------------------------------------------------------------------

# Parameters of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
NEVER, LARGE = -1, 64 * 1024


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, so that times are those of the computation.

    By default glibc returns freed blocks of some megabytes to the system, and gets them back at the
    next allocation: then every page of a block faults, which costs more than a norm does and
    happens unpredictably.
    """
    _set_allocation({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER})


def return_freed_memory() -> None:
    """Return freed blocks from 64 KiB to the system, so that only live tensors use memory."""
    _set_allocation({MMAP_THRESHOLD: LARGE, TRIM_THRESHOLD: LARGE})


def _set_allocation(parameters: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not all(mallopt(name, value) for name, value in parameters.items()):
        print("note: the allocation of this C library is not changed", file=sys.stderr)


def memory_mib(entry: str) -> float:
    """Return ``VmRSS``, the current memory of this process, or ``VmHWM``, its peak (Linux)."""
    # not getrusage's ru_maxrss, which a new process inherits from its parent
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(rf"{entry}:\s*(\d+) kB", status)[0]) / 1024
