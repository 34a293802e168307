"""The number of seeds that a difference needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from norm_lab.study.significance import LEVEL, pooled_standard_deviation, standard_deviation

POWER = 0.8
"""The power for which the number of seeds is planned."""
MOST_SEEDS = 10**9


def seeds_needed(
    standard_deviation: float,
    difference: float,
    *,
    paired: bool,
    comparisons: int = 1,
    test_to_train: float = 0.0,
) -> float:
    """Return the seeds per arm that a t test needs for 80 % power at the 5 % level.

    The result is infinite if no number suffices, as may happen on random splits of one corpus,
    and NaN without a standard deviation.

    Args:
        standard_deviation: that of the differences by seed if paired, otherwise that of each arm.
        comparisons: the size of the family, by which the level is divided.
        test_to_train: see :func:`compare`.
    """
    if not (standard_deviation > 0 and difference > 0):
        return math.nan
    effect, level = difference / standard_deviation, LEVEL / comparisons

    def power(n: int) -> float:  # by the noncentral F distribution of t squared
        degrees = n - 1 if paired else 2 * n - 2
        variance = (1 if paired else 2) * (1 / n + test_to_train)
        critical = stats.f.isf(level, 1, degrees)
        return float(stats.ncf.sf(critical, 1, degrees, effect**2 / variance))

    counts = range(2, MOST_SEEDS)
    return counts[bisect_left(counts, POWER, key=power)] if power(MOST_SEEDS) > POWER else math.inf


def resolution(table: pd.DataFrame, of_interest: float, test_to_train: float = 0.0) -> pd.DataFrame:
    """Return the seeds needed to detect a difference, from all rows of :func:`compare_arms`.

    The standard deviation of the differences by seed is pooled over arms, unless Bartlett's test
    shows that it differs between them.

    Args:
        test_to_train: see :func:`compare`.

    Returns:
        columns ``quantity`` and ``value``; empty if fewer than two seeds are paired.
    """
    samples = [values for values in table["by_seed"] if len(values) > 1]
    values: dict[str, float] = {}
    if samples:
        p = equal_variances_p(samples)
        values["p of Bartlett's test that all differences have one standard deviation"] = p
        if not p < LEVEL:
            deviation = pooled_standard_deviation(samples)
            values["standard deviation of the differences by seed, pooled"] = deviation
            for count in dict.fromkeys((1, len(samples))):
                text = f"paired seeds that show a difference of {of_interest:g}, of {count}"
                values[text] = seeds_needed(
                    deviation,
                    of_interest,
                    paired=True,
                    comparisons=count,
                    test_to_train=test_to_train,
                )
    return pd.DataFrame(values.items(), columns=["quantity", "value"])


def equal_variances_p(samples: Sequence[Sequence[float]]) -> float:
    """Return the p value of Bartlett's test of equal variances; NaN if a sample does not vary."""
    groups = [np.asarray(sample, dtype=float) for sample in samples if len(sample) > 1]
    if len(groups) < 2 or any(standard_deviation(group) == 0 for group in groups):
        return math.nan
    return float(stats.bartlett(*groups).pvalue)
