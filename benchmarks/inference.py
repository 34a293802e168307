#!/usr/bin/env python3
"""Simulate size and power of the tests of norm_lab.study.significance, and interval coverage.

python benchmarks/inference.py

Scores of two arms are drawn with a known difference, 2,000 times for each row, from normal
distributions with a standard deviation of 1. Every row of benchmarks/results/inference.csv has the
share of draws in which each test at the 5 % level shows a difference, or equivalence within half a
standard deviation, and in which each 95 % interval contains the true difference.

With overlapping splits, the differences of two seeds are correlated as Nadeau and Bengio (2003)
assume for test sets an eighth as large as the training sets, and the paired test is corrected.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from measuring.records import RESULTS
from norm_lab.study.significance import LEVEL, Comparison, compare_independent, compare_paired
from norm_plugin.io.command_line import at_least, run_command
from norm_plugin.io.files import write_text

OUTPUT = RESULTS / "inference.csv"
SEEDS = (2, 3, 8, 20)
DIFFERENCES = (0.0, 0.5)
MARGIN = 0.5
STEP = 0.5  # scores are rounded to multiples of this, for ties
TEST_TO_TRAIN = 1 / 8
KINDS = {
    "independent": 0.0,
    "correlated": 0.9,
    "correlated, ties": 0.9,
    "overlapping splits": 0.9,
}
"""The correlation of the two scores of a seed, by the kind of pairs."""


def draw(
    generator: np.random.Generator, kind: str, seeds: int, difference: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of an arm and of its baseline, one per seed."""
    correlation = KINDS[kind]
    shared = np.sqrt(correlation) * generator.normal(size=seeds)
    noise = np.sqrt(1 - correlation) * generator.normal(size=(2, seeds))
    if kind == "overlapping splits":
        overlap = TEST_TO_TRAIN / (1 + TEST_TO_TRAIN)
        of_corpus = np.sqrt(1 - correlation) * generator.normal(size=(2, 1))
        noise = np.sqrt(overlap) * of_corpus + np.sqrt(1 - overlap) * noise
    arm, baseline = shared + noise + [[difference], [0.0]]
    if kind.endswith("ties"):
        return np.round(arm / STEP) * STEP, np.round(baseline / STEP) * STEP
    return arm, baseline


def holds(comparison: Comparison, difference: float) -> float:
    """Return whether the interval contains the difference; NaN if all scores tie."""
    low, high = comparison.interval
    return float(low <= difference <= high) if low < high else np.nan


def measure(kind: str, seeds: int, difference: float, draws: int) -> dict[str, object]:
    """Return a row of the table."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(draws):
        arm, baseline = draw(generator, kind, seeds, difference)
        ratio = TEST_TO_TRAIN if kind == "overlapping splits" else 0.0
        paired = compare_paired(arm - baseline, ratio)
        welch = compare_independent(arm, baseline)
        rows.append(
            {
                "paired t": paired.p < LEVEL,
                "sign flips": paired.p_permutation < LEVEL,
                "Welch": welch.p < LEVEL,
                "divisions": welch.p_permutation < LEVEL,
                "equivalence": paired.equivalence_p(MARGIN) < LEVEL,
                "paired interval": holds(paired, difference),
                "Welch interval": holds(welch, difference),
            }
        )
    shares = pd.DataFrame(rows).mean().round(4)
    return {"pairs": kind, "difference": difference, "seeds": seeds, "draws": draws, **shares}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--draws", type=at_least(1), default=2000, help="default: %(default)s")
    parser.add_argument("--seeds", type=at_least(2), nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, default=OUTPUT)
    args = parser.parse_args(argv)
    table = pd.DataFrame(
        measure(kind, seeds, difference, args.draws)
        for kind, difference, seeds in itertools.product(KINDS, DIFFERENCES, args.seeds)
    )
    write_text(args.out, table.to_csv(index=False))
    return 0


if __name__ == "__main__":
    run_command(main)
