"""Timing in alternation, A B A B, so that a machine that changes its speed does so for all.

On a GPU a call begins with cold caches, and when all of it is queued: in training, too, Python runs
ahead of the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(-warmup, repetitions):
        for name, call in calls.items():
            milliseconds = timed(call)
            if number >= 0:
                times[name].append(milliseconds)
    return times
