"""What claims share: the options of the measurements, verdicts, tables and fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from norm_lab.report.figure import style
from norm_lab.study.significance import Sample, describe
from norm_plugin.placements import PLACEMENTS
from papers.theory.models import (
    Activations,
    Batches,
    StackPass,
    encoder_activations,
    full,
    random_batches,
    stack_pass,
)

INTERVAL = "95 % interval"
ROUNDING = 1e-9
"""Far above the error of sums of some hundred float64 numbers, far below any real effect."""
SITE_LAYERS = 6
"""The number of layers of the full model for measurements at single norms."""
Row = dict[str, Any]
"""A row of a table, by column."""


@dataclass(frozen=True)
class Options:
    """The options of the measurements.

    Attributes:
        main: the placements that are measured with all seeds and all batches: those that Xiong et
            al. 2020 compare.
        real: batches of a corpus, if any.
        layers: the numbers of layers for the gradient of the last layer.
        depth: the number of layers for measurements by layer.
        dim: d of the simplified setting.
        full_dim: d of the full model.
        data: the binarized data of the checkpoints; None for the folder that each was trained on.
    """

    placements: tuple[str, ...] = tuple(PLACEMENTS)
    main: tuple[str, ...] = ("post", "pre")
    random: Batches = field(default_factory=random_batches)
    real: Batches | None = None
    layers: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 24)
    depth: int = 12
    dim: int = 512
    full_dim: int = 128
    seeds: int = 8
    checkpoints: tuple[Path, ...] = ()
    data: Path | None = None

    def seeds_of(self, placement: str) -> range:
        """Return the seeds of a placement: all seeds for a main one, half of them for others."""
        return range(self.seeds if placement in self.main else (self.seeds + 1) // 2)

    def batches_of(self, placement: str) -> list[Batches]:
        """Return the batches of a placement: random tokens, and the corpus for a main one."""
        return [self.random, self.real] if self.real and placement in self.main else [self.random]

    def draws(self, placement: str) -> Iterator[tuple[Row, Batches, int]]:
        """Yield the draws of a placement: identifying columns, batches and seed."""
        for batches in self.batches_of(placement):
            for seed in self.seeds_of(placement):
                yield {"tokens": batches.kind, "placement": placement, "seed": seed}, batches, seed

    def stack_pass(self, placement: str, batches: Batches, seed: int) -> StackPass:
        """Return a pass through the simplified setting, for measurements by layer."""
        return stack_pass(placement, self.depth, self.dim, batches, seed)

    def activations(self, placement: str) -> Iterator[tuple[Row, Activations]]:
        """Yield the activations of each encoder norm of the full model, per seed and batch.

        There are none for a placement that is not a main one.
        """
        for where, batches, seed in self.draws(placement) if placement in self.main else ():
            model = full(placement, SITE_LAYERS, self.full_dim, batches, seed).model
            for activations in encoder_activations(model, batches, seed):
                yield {**where, "site": activations.site}, activations

    def activations_by_site(
        self, placement: str, seeds: int | None = None
    ) -> Iterator[tuple[Row, tuple[Activations, ...]]]:
        """Yield the activations of each encoder norm of one model, on several seeds' batches."""
        for batches in self.batches_of(placement) if placement in self.main else ():
            model = full(placement, SITE_LAYERS, self.full_dim, batches, seed=0).model
            passes = [encoder_activations(model, batches, s) for s in range(seeds or self.seeds)]
            for at_site in zip(*passes):
                where = {"tokens": batches.kind, "placement": placement, "site": at_site[0].site}
                yield where, at_site


# Verdicts


def verdict(stated: str, measured: Sample | str, holds: bool | None, digits: int = 3) -> Row:
    """Return the columns of a row of verdicts.

    ``holds`` is None if the paper states nothing for this case, or it cannot be decided. A mean
    over seeds is shown with ``digits`` decimal places.
    """
    row = {"stated": stated, "measured": measured, INTERVAL: "-", "holds": yes(holds)}
    if isinstance(measured, Sample):
        row["measured"] = f"{measured.mean:.{digits}f}"
        row[INTERVAL] = interval_text(measured, digits)
    return row


def near_verdict(
    stated: float, measured: Sample | None, tolerance: float, at_most: bool = False
) -> Row:
    """Return the verdict on a number, up to a tolerance; None is an undefined measurement.

    Another column says whether the interval contains the number. With ``at_most`` the number is
    an upper bound, which a smaller measurement meets.
    """
    text = f"{'at most ' if at_most else ''}{stated:.3g} {'+' if at_most else '±'} {tolerance:g}"
    if measured is None:
        return {**verdict(text, "undefined", None), "contains it": "-"}
    above = measured.mean - stated
    row = verdict(text, measured, (above if at_most else abs(above)) <= tolerance)
    return {**row, "contains it": yes(contains(measured, stated))}


def yes(value: bool | None) -> str:
    """Return ``yes``, ``no``, or ``-`` for None."""
    return "-" if value is None else "yes" if value else "no"


def interval_text(sample: Sample, digits: int) -> str:
    """Return the interval over seeds: ``1.49 to 1.51``."""
    if sample.count == 1:
        return "one seed"
    return " to ".join(f"{end:.{digits}f}" for end in sample.interval)


def with_interval(sample: Sample | None, digits: int = 3) -> str:
    """Return the mean over seeds with its 95 % interval, if any: ``1.50 (1.49 to 1.51)``."""
    if sample is None:
        return "undefined"
    return f"{sample.mean:.{digits}f} ({interval_text(sample, digits)})"


def contains(sample: Sample, value: float) -> bool | None:
    """Return whether the interval contains ``value``; None for one seed, which has no interval."""
    low, high = sample.interval
    return None if sample.count == 1 else low <= value <= high


# Tables of measurements


def like_first(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the rows with the same values in ``columns`` as the first one."""
    return frame[(frame[list(columns)] == frame[list(columns)].iloc[0]).all(axis=1)]


def cases(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Yield the rows with the same values in ``columns``, and these values."""
    for values, some in frame.groupby(list(columns), sort=False, dropna=False):
        yield dict(zip(columns, values)), some


def finite_cases(claim: Any, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Row]]:
    """Return the cases whose measurements are all finite, and a row for each other case.

    Leaving out single rows would fit a line to the layers that happen to be finite, and a maximum
    would hide a NaN.
    """
    case = [column for column in claim.CASE if column in frame]
    numbers = frame.select_dtypes("number")
    required = numbers.columns.difference([*claim.CASE, *getattr(claim, "MAY_LACK", ())])
    bad = np.isinf(numbers).any(axis=1) | numbers[required].isna().any(axis=1)
    by_case = bad.groupby([frame[column] for column in case], sort=False, dropna=False)
    left_out = [
        dict(zip(case, key))
        | verdict("-", f"not finite in {of_case.sum()} of {len(of_case)}", None)
        for key, of_case in by_case
        if of_case.any()
    ]
    return frame[~by_case.transform("any")], left_out


GRAY = {"color": "#888888", "linewidth": 1}
"""The style of a reference line."""


def draw_lines(axes: Any, lines: Iterable[tuple[str, pd.Series]], **settings: str) -> None:
    """Draw a line for each series over its index; ``settings`` are those of ``Axes.set``."""
    for place, (name, values) in enumerate(lines):
        if len(values):
            axes.plot(values.index, values, **style(place), label=name)
    axes.set(**settings)


# Fits
#
# For each seed, a line is fitted to the logarithms by least squares. The interval of the exponent
# is Student's for the mean of the slopes, as seeds are independent. It does not test whether a
# power law holds.


def exponent(frame: pd.DataFrame, of: str, over: str) -> Sample | None:
    """Return p of ``of`` ~ ``over``^p; None unless all values are positive numbers."""
    if not _have_logarithms(frame[over]):
        return None
    return rate(frame.assign(**{over: np.log(frame[over])}), of, over)


def rate(frame: pd.DataFrame, of: str, over: str) -> Sample | None:
    """Return r of ``of`` ~ exp(r ``over``); None unless all values of ``of`` are positive."""
    if not _have_logarithms(frame[of]):
        return None
    return describe(
        [
            float(stats.linregress(of_seed[over], np.log(of_seed[of])).slope)
            for _, of_seed in frame.groupby("seed", sort=False)
        ]
    )


def _have_logarithms(values: pd.Series) -> bool:
    numbers = values.to_numpy(float)
    return len(numbers) > 0 and bool((np.isfinite(numbers) & (numbers > 0)).all())


def factor_below(rates: Sample | None) -> Sample | None:
    """Return exp(-r), with r of :func:`rate`: the factor from one layer to the one below it."""
    if rates is None:
        return None
    low, high = rates.interval
    ends = math.exp(-high), math.exp(-low)
    return Sample(math.exp(-rates.mean), math.nan, ends, rates.count)
