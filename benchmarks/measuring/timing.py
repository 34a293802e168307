"""Timing in alternation, A B A B, so that a machine that changes its speed does so for all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Name = TypeVar("Name")


class Quartiles(NamedTuple):
    """The 25th, 50th and 75th percentile."""

    p25: float
    p50: float
    p75: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """The quartiles of one value or more, interpolated between them."""
    if len(values) == 1:
        return Quartiles(*(values[0],) * 3)
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def alternate(
    calls: Mapping[Name, Callable[[], object]], repetitions: int, warmup: int
) -> dict[Name, list[float]]:
    """Milliseconds of each call, ``repetitions`` of them, by its name.

    Every round makes each call once, in the order given. ``warmup`` rounds before are not
    counted.
    """
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(-warmup, repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if number >= 0:
                times[name].append(1000 * elapsed)
    return times
