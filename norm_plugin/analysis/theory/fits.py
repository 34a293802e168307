"""Exponents and rates that measurements follow, with intervals over seeds.

A line is fitted to the logarithms for each seed by least squares. The seeds are independent draws,
so Student's interval of the mean of their slopes is that of the exponent. It says how well the
slope over these points is known, not whether a power law holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy import stats

from norm_plugin.analysis.seeds import Sample, describe

Points = Sequence[tuple[float, float]]
"""(x, y) of one seed."""


def exponent(by_seed: Mapping[int, Points]) -> Sample | None:
    """p of y ~ x^p, over seeds; None where an x or a y is not a number above 0."""
    if not all(_has_logarithm(x) for points in by_seed.values() for x, _ in points):
        return None
    return rate({seed: [(math.log(x), y) for x, y in points] for seed, points in by_seed.items()})


def rate(by_seed: Mapping[int, Points]) -> Sample | None:
    """r of y ~ exp(r x), over seeds; None where a y is not a number above 0."""
    if not all(_has_logarithm(y) for points in by_seed.values() for _, y in points):
        return None
    return describe([_slope(points) for points in by_seed.values()])


def _has_logarithm(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _slope(points: Points) -> float:
    """Of log y over x."""
    xs, ys = zip(*points)
    return float(stats.linregress(xs, [math.log(y) for y in ys]).slope)


def factor_below(rates: Sample | None) -> Sample | None:
    """exp(-r): what y is multiplied by from one layer to the one below. rates: of :func:`rate`."""
    if rates is None:
        return None
    interval = None
    if rates.interval is not None:
        low, high = rates.interval
        interval = math.exp(-high), math.exp(-low)
    return Sample(math.exp(-rates.mean), None, interval, rates.count)


def contains(sample: Sample, value: float) -> bool | None:
    """Whether the interval holds ``value``; None without an interval, of one seed."""
    if sample.interval is None:
        return None
    low, high = sample.interval
    return low <= value <= high
