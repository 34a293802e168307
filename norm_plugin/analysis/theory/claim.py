"""What a claim is: its measurements, its verdicts, and the fits that claims share.

A claim is one file in this folder. Its ``CLAIM`` is found by importing the folder. The first line
of its docstring is the title of its section in ``docs/theory.md``, where its prose is typed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.stats import Sample, describe
from norm_plugin.analysis.theory.batches import Batches
from norm_plugin.analysis.theory.models import (
    Activations,
    StackPass,
    encoder_activations,
    full,
    stack_pass,
)

INTERVAL = "95 % interval"
SITE_LAYERS = 6
"""L of the full model whose norms are looked at one by one."""
Row = dict[str, Any]
"""A line of a table, by column."""


@dataclass(frozen=True)
class Options:
    """What the command measures.

    Attributes:
        placements: of ``--norm-placement``.
        main: those of them that are measured on all seeds and all batches.
        random: batches of random tokens.
        real: batches of a corpus; None: there is none.
        norm_type: the norm at every site.
        layers: the numbers of layers that the last layer's gradient is measured at.
        depth: the number of layers where one stack is looked at layer by layer.
        dim: d of the simplified setting.
        full_dim: d of the full model.
        seeds: how many, from 0, of the main placements.
        checkpoints: of trained models.
        data: of the checkpoints; None: the folder that each was trained on.
    """

    placements: tuple[str, ...]
    main: tuple[str, ...]
    random: Batches
    real: Batches | None = None
    norm_type: str = "layernorm"
    layers: tuple[int, ...] = (2, 4, 6, 8, 12, 16, 24)
    depth: int = 12
    dim: int = 512
    full_dim: int = 128
    seeds: int = 8
    checkpoints: tuple[Path, ...] = ()
    data: Path | None = None

    def seeds_of(self, placement: str) -> range:
        """The seeds of a placement: all of a main one, half of them of the others."""
        return range(self.seeds if placement in self.main else (self.seeds + 1) // 2)

    def batches_of(self, placement: str) -> list[Batches]:
        """The batches of a placement: random tokens, and a corpus for a main one."""
        return [self.random, self.real] if self.real and placement in self.main else [self.random]

    def draws(self, placement: str) -> Iterator[tuple[Row, Batches, int]]:
        """Each batch of a placement: the columns that name it, where it comes from, its seed."""
        for batches in self.batches_of(placement):
            for seed in self.seeds_of(placement):
                yield {"tokens": batches.kind, "placement": placement, "seed": seed}, batches, seed

    def stack_pass(self, placement: str, batches: Batches, seed: int) -> StackPass:
        """The pass through the simplified setting that is looked at layer by layer."""
        return stack_pass(placement, self.norm_type, self.depth, self.dim, batches, seed)

    def activations(self, placement: str) -> Iterator[tuple[Row, Activations]]:
        """Of each batch and norm of the encoder of a full model, one model a seed.

        Of main placements only.
        """
        for where, batches, seed in self.draws(placement) if placement in self.main else ():
            model = self._site_model(placement, batches, seed)
            for activations in encoder_activations(model, batches, seed):
                yield {**where, "site": activations.site}, activations

    def activations_by_site(
        self, placement: str, seeds: int | None = None
    ) -> Iterator[tuple[Row, tuple[Activations, ...]]]:
        """The same of one model, whose norms each see the batches of all seeds, or the first."""
        for batches in self.batches_of(placement) if placement in self.main else ():
            model = self._site_model(placement, batches, seed=0)
            passes = [encoder_activations(model, batches, s) for s in range(seeds or self.seeds)]
            for at_site in zip(*passes):
                where = {"tokens": batches.kind, "placement": placement, "site": at_site[0].site}
                yield where, at_site

    def _site_model(self, placement: str, batches: Batches, seed: int) -> Any:
        size = (SITE_LAYERS, self.full_dim)
        return full(placement, self.norm_type, *size, batches, seed).model


def nothing(options: Options, placement: str = "") -> pd.DataFrame:
    """No measurements."""
    return pd.DataFrame()


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and how it is measured.

    Attributes:
        place: among the claims, from 1.
        caption: of its figure.
        case: the columns that tell its cases apart.
        verdicts: the table of what is stated and what was measured, by :func:`verdict`.
        plot: draws the measurements on matplotlib's axes.
        tables: the same in full.
        measure: gives the measurements of one placement.
        measure_once: gives those that belong to no placement.
        may_lack: columns of numbers that some rows do not have.
        height: of the figure, in inches.
    """

    place: int
    caption: str
    case: tuple[str, ...]
    verdicts: Callable[[pd.DataFrame], Iterable[Row]]
    plot: Callable[[pd.DataFrame, Any], None]
    tables: Callable[[pd.DataFrame], Iterable[pd.DataFrame]] = lambda frame: []
    measure: Callable[[Options, str], pd.DataFrame] = nothing
    measure_once: Callable[[Options], pd.DataFrame] = nothing
    may_lack: tuple[str, ...] = ()
    height: float = 3.6

    @property
    def name(self) -> str:
        """Of its files: that of its module."""
        return self.verdicts.__module__.rpartition(".")[2].replace("_", "-")

    @property
    def text(self) -> str:
        """The docstring of its module."""
        return (sys.modules[self.verdicts.__module__].__doc__ or "").strip()


# Verdicts


def verdict(stated: str, measured: Sample | str, holds: bool | None, digits: int = 3) -> Row:
    """The columns of a row of verdicts.

    Args:
        stated: by the paper.
        measured: a mean over seeds, or a text.
        holds: None where the paper states nothing of this case, or it cannot be said.
        digits: of a mean.
    """
    row = {"stated": stated, "measured": measured, INTERVAL: "-", "holds": yes(holds)}
    if isinstance(measured, Sample):
        row["measured"] = f"{measured.mean:.{digits}f}"
        row[INTERVAL] = interval_text(measured, digits)
    return row


def near_verdict(stated: float, measured: Sample | None, tolerance: float) -> Row:
    """The same of a number, which holds up to a tolerance; None: it is undefined.

    A further column says whether the interval contains the number.
    """
    text = f"{stated:.3g} ± {tolerance:g}"
    if measured is None:
        return {**verdict(text, "undefined", None), "contains it": "-"}
    row = verdict(text, measured, abs(measured.mean - stated) <= tolerance)
    return {**row, "contains it": yes(contains(measured, stated))}


def yes(value: bool | None) -> str:
    """``yes``, ``no``, or ``-`` where that is not known."""
    return "-" if value is None else "yes" if value else "no"


def interval_text(sample: Sample, digits: int) -> str:
    """``1.49 to 1.51``, over seeds."""
    if sample.interval is None:
        return "one seed"
    return " to ".join(f"{end:.{digits}f}" for end in sample.interval)


def with_interval(sample: Sample | None, digits: int = 3) -> str:
    """``1.50 (1.49 to 1.51)``: the mean over seeds and its 95 % interval, if there is one."""
    if sample is None:
        return "undefined"
    return f"{sample.mean:.{digits}f} ({interval_text(sample, digits)})"


def contains(sample: Sample, value: float) -> bool | None:
    """Whether the interval contains ``value``; None without an interval, of one seed."""
    if sample.interval is None:
        return None
    low, high = sample.interval
    return low <= value <= high


# Tables of measurements


def groups(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The rows by their values in ``columns``, in the order of the rows.

    The values are a tuple, or with one column the value itself.
    """
    by = list(columns) if len(columns) > 1 else columns[0]
    return iter(frame.groupby(by, sort=False, dropna=False))


def like_first(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows that are equal to the first one in ``columns``."""
    return frame[(frame[list(columns)] == frame[list(columns)].iloc[0]).all(axis=1)]


def finite_cases(claim: Claim, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Row]]:
    """The cases that are finite throughout, and a row of verdicts for each other one.

    To leave out single rows would fit a line to the layers that happen to be finite, and the
    largest of several numbers hides a NaN among them.
    """
    case = [column for column in claim.case if column in frame]
    numbers = frame.select_dtypes("number")
    required = numbers.columns.difference([*claim.case, *claim.may_lack])
    bad = np.isinf(numbers).any(axis=1) | numbers[required].isna().any(axis=1)
    by = [frame[column] for column in case] or [np.zeros(len(frame))]  # without cases, all is one
    counts = bad.groupby(by, sort=False, dropna=False)
    left_out = [
        {
            **dict(zip(case, key if isinstance(key, tuple) else (key,))),
            **verdict("-", f"not finite in {of_case.sum()} of {len(of_case)}", None),
        }
        for key, of_case in counts
        if of_case.any()
    ]
    return frame[~counts.transform("any")], left_out


def draw_lines(axes: Any, lines: Iterable[tuple[str, pd.Series]], **settings: str) -> None:
    """Draw a line for each name over the index of its values.

    Args:
        settings: of the axes, as ``Axes.set`` of matplotlib takes them.
    """
    for place, (name, values) in enumerate(lines):
        if len(values):
            axes.plot(values.index, values, **style(place), label=name)
    axes.set(**settings)


# Fits
#
# A line is fitted to the logarithms for each seed by least squares. The seeds are independent
# draws, so Student's interval of the mean of their slopes is that of the exponent. It says how well
# the slope over these points is known, not whether a power law holds.


def exponent(frame: pd.DataFrame, of: str, over: str) -> Sample | None:
    """p of ``of`` ~ ``over``^p; None where one of them is not a number above 0."""
    if not _have_logarithms(frame[over]):
        return None
    return rate(frame.assign(**{over: np.log(frame[over])}), of, over)


def rate(frame: pd.DataFrame, of: str, over: str) -> Sample | None:
    """r of ``of`` ~ exp(r ``over``); None where ``of`` is not a number above 0."""
    if not _have_logarithms(frame[of]):
        return None
    return describe(
        [
            float(stats.linregress(of_seed[over], np.log(of_seed[of])).slope)
            for _, of_seed in groups(frame, "seed")
        ]
    )


def _have_logarithms(values: pd.Series) -> bool:
    numbers = values.to_numpy(float)
    return len(numbers) > 0 and bool((np.isfinite(numbers) & (numbers > 0)).all())


def factor_below(rates: Sample | None) -> Sample | None:
    """exp(-r), of :func:`rate`: what y is multiplied by from one layer to the one below it."""
    if rates is None:
        return None
    ends = None
    if rates.interval is not None:
        low, high = rates.interval
        ends = math.exp(-high), math.exp(-low)
    return Sample(math.exp(-rates.mean), None, ends, rates.count)
