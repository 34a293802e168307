"""Time and memory.

Calls are timed in alternation, A B A B, so that a machine that changes its speed does so for all.
On a GPU a call begins with cold caches, and when all of it is queued: in training, too, Python runs
ahead of the device.
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
import torch

Name = TypeVar("Name")
COPIED = 1 << 28  # bytes, more than any cache holds
HEAD_START = 2_000_000  # clock cycles, about a millisecond


class Quartiles(NamedTuple):
    """The 25th, 50th and 75th percentile."""

    p25: float
    p50: float
    p75: float

    def rounded(self, digits: int, name: str = "{}_ms") -> dict[str, float]:
        """As columns of a row; ``name`` makes that of a column of p25, p50 and p75."""
        return {name.format(p): round(x, digits) for p, x in self._asdict().items()}


def quartiles(values: Sequence[float]) -> Quartiles:
    """The quartiles of one value or more, interpolated between them."""
    return Quartiles(*np.percentile(values, [25, 50, 75]).tolist())


def on_cpu(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def on_gpu(call: Callable[[], object]) -> float:
    """Milliseconds of one call on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(COPIED, dtype=torch.uint8, device="cuda").zero_()  # empties the caches
    torch.cuda._sleep(HEAD_START)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def copied_bytes_per_ms(repetitions: int) -> float:
    """What a copy on the GPU reads and writes."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = [on_gpu(lambda: target.copy_(source)) for _ in range(2 * repetitions)]
    return 2 * COPIED / quartiles(times[repetitions:]).p50


def alternate(
    calls: Mapping[Name, Callable[[], object]],
    repetitions: int,
    warmup: int,
    timed: Callable[[Callable[[], object]], float] = on_cpu,
) -> dict[Name, list[float]]:
    """Milliseconds of each call, ``repetitions`` of them, by its name.

    Every round makes each call once, in the order given. ``warmup`` rounds before are not counted.
    """
    rounds = [[timed(call) for call in calls.values()] for _ in range(warmup + repetitions)]
    return {name: list(times) for name, times in zip(calls, zip(*rounds[warmup:]))}


# ---- memory ---------------------------------------------------------------------------------

# Parameters of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
NEVER, LARGE = -1, 64 * 1024


def keep_freed_memory() -> None:
    """Let this process keep what it frees, so that times are those of the computation.

    By default glibc hands a block of some megabytes back to the system when it is freed, and takes
    it anew at the next allocation: then every page of it faults, which costs more than a norm does
    and happens or not by chance.
    """
    _set_allocation({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER})


def return_freed_memory() -> None:
    """Let blocks from 64 KiB leave this process when freed: it then has the tensors alive."""
    _set_allocation({MMAP_THRESHOLD: LARGE, TRIM_THRESHOLD: LARGE})


def _set_allocation(parameters: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not all(mallopt(name, value) for name, value in parameters.items()):
        print("note: this C library's allocation stays as it is", file=sys.stderr)


def memory_mib(entry: str) -> float:
    """``VmRSS``, the memory of this process now, or ``VmHWM``, the most of it so far (Linux)."""
    # not getrusage's ru_maxrss, which a new process inherits from the one that started it
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(rf"{entry}:\s*(\d+) kB", status)[0]) / 1024
