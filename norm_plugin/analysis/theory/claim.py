"""What a claim is, the fits that claims share, and the files and the page that are made of claims.

A claim is one file in this folder. Its ``CLAIM`` is found by importing the folder, its module
docstring is the text of its section: the title in the first line, then Markdown.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from norm_plugin.analysis.figures import INK_ON_PAPER, draw
from norm_plugin.analysis.stats import Sample, describe
from norm_plugin.analysis.theory.stacks import Batches, full
from norm_plugin.commands.command_line import CommandError, read_json, read_text, write_text
from norm_plugin.experiments.provenance import short_commit
from norm_plugin.experiments.tables import markdown

MADE = "made.json"
BEGIN, END = "<!-- begin:theory -->", "<!-- end:theory -->"
"""Around the sections of the claims in the page; what is outside is typed there."""
INTERVAL = "95 % interval"
SITE_LAYERS = 6
"""L of the full model whose norms are looked at one by one."""
Row = dict[str, Any]
"""One measurement, or one line of a table, by column."""


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

    def main_batches_of(self, placement: str) -> list[Batches]:
        """The same; none for a placement that is not a main one."""
        return self.batches_of(placement) if placement in self.main else []

    def model(self, placement: str, batches: Batches, seed: int) -> Any:
        """The full model whose norms are looked at one by one."""
        return full(placement, self.norm_type, SITE_LAYERS, self.full_dim, batches, seed)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and how it is measured.

    Attributes:
        name: of its files.
        place: on the page, from 1.
        text: of its section, the module's docstring.
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

    name: str
    place: int
    text: str
    caption: str
    case: tuple[str, ...]
    verdicts: Callable[[pd.DataFrame], Iterable[Row]]
    plot: Callable[[pd.DataFrame, Any], None]
    tables: Callable[[pd.DataFrame], Iterable[pd.DataFrame]] = lambda frame: []
    measure: Callable[[Options, str], Iterable[Row]] = lambda options, placement: []
    measure_once: Callable[[Options], Iterable[Row]] = lambda options: []
    may_lack: tuple[str, ...] = ()
    height: float = 3.6


# Verdicts


def verdict(
    stated: str,
    measured: Sample | str,
    holds: bool | None,
    digits: int = 3,
) -> Row:
    """The columns of a row of verdicts.

    Args:
        stated: by the paper.
        measured: a mean over seeds, or a text.
        holds: None where the paper states nothing of this case, or it cannot be said.
        digits: of a mean.
    """
    row = {"stated": stated, "measured": measured, INTERVAL: "-", "holds": yes(holds)}
    if isinstance(measured, Sample):
        row |= {"measured": f"{measured.mean:.{digits}f}", INTERVAL: interval(measured, digits)}
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


def interval(sample: Sample, digits: int) -> str:
    """``1.49 to 1.51``, over seeds."""
    if sample.interval is None:
        return "one seed"
    low, high = sample.interval
    return f"{low:.{digits}f} to {high:.{digits}f}"


def with_interval(sample: Sample | None, digits: int = 3) -> str:
    """``1.50 (1.49 to 1.51)``: the mean over seeds and its 95 % interval, if there is one."""
    if sample is None:
        return "undefined"
    return f"{sample.mean:.{digits}f} ({interval(sample, digits)})"


def contains(sample: Sample, value: float) -> bool | None:
    """Whether the interval contains ``value``; None without an interval, of one seed."""
    if sample.interval is None:
        return None
    low, high = sample.interval
    return low <= value <= high


def groups(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """The rows by their values in ``columns``, in the order of the rows.

    The values are a tuple, or with one column the value itself.
    """
    by = list(columns) if len(columns) > 1 else columns[0]
    return iter(frame.groupby(by, sort=False, dropna=False))


def like_first(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows that are equal to the first one in ``columns``."""
    return frame[(frame[list(columns)] == frame[list(columns)].iloc[0]).all(axis=1)]


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
            float(stats.linregress(some[over], np.log(some[of])).slope)
            for _, some in groups(frame, "seed")
        ]
    )


def _have_logarithms(values: pd.Series) -> bool:
    numbers = values.to_numpy(float)
    return len(numbers) > 0 and bool((np.isfinite(numbers) & (numbers > 0)).all())


def factor_below(rates: Sample | None) -> Sample | None:
    """exp(-r): what y is multiplied by from one layer to the one below. rates: of :func:`rate`."""
    if rates is None:
        return None
    ends = None
    if rates.interval is not None:
        low, high = rates.interval
        ends = math.exp(-high), math.exp(-low)
    return Sample(math.exp(-rates.mean), None, ends, rates.count)


# Files


def store(claim: Claim, rows: list[Row], made: Row, folder: Path) -> None:
    """Write the measurements of a claim; its older ones are replaced.

    Args:
        made: how it was measured, as ``made.json`` has it.
    """
    text = pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(folder / f"{claim.name}.csv", text)
    entries = {**read_made(folder), claim.name: made}
    write_text(folder / MADE, json.dumps(entries, indent=2, sort_keys=True) + "\n")


def read_made(folder: Path) -> dict[str, Any]:
    """How each claim in ``folder`` was measured, by its name."""
    path = folder / MADE
    made: dict[str, Any] = read_json(path) if path.exists() else {}
    return made


def read_measurements(claim: Claim, folder: Path) -> pd.DataFrame:
    """What :func:`store` has written; only empty cells and ``nan`` are missing values."""
    path = folder / f"{claim.name}.csv"
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=["", "nan"])
    except (OSError, ValueError) as error:  # pandas' errors of parsing are ValueErrors
        raise CommandError(f"cannot read {path}: {error}") from error


def finite_cases(claim: Claim, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Row]]:
    """The cases that are finite throughout, and a row of verdicts for each other one.

    To leave out single rows would fit a line to the layers that happen to be finite, and the
    largest of several numbers hides a NaN among them.
    """
    case = [column for column in claim.case if column in frame]
    numbers = frame.select_dtypes("number")
    required = numbers.columns.difference([*claim.case, *claim.may_lack])
    bad = np.isinf(numbers).any(axis=1) | numbers[required].isna().any(axis=1)
    keep = pd.Series(True, index=frame.index)
    left_out = []
    for values, some in groups(frame.assign(_bad=bad), *case):
        if some["_bad"].any():
            keep[some.index] = False
            count = f"not finite in {some['_bad'].sum()} of {len(some)}"
            key = values if isinstance(values, tuple) else (values,)
            left_out.append({**dict(zip(case, key)), **verdict("-", count, None)})
    return frame[keep], left_out


# The page


def write_page(claims: Mapping[str, Claim], folder: Path, page: Path) -> None:
    """Draw the figures of the measured claims in ``folder``, and write their sections in ``page``.

    Raises:
        CommandError: there are none, or a file is missing.
    """
    measured = {name: claim for name, claim in claims.items() if name in read_made(folder)}
    for name, claim in measured.items():
        write_text(folder / f"{name}.svg", drawing(claim, read_measurements(claim, folder)))
    old = read_text(page) if page.exists() else f"# The theory, measured\n\n{BEGIN}\n{END}\n"
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise CommandError(f"{page} has no lines {BEGIN} and {END}, between which its claims stand")
    to_folder = Path(os.path.relpath(folder, page.parent)).as_posix()
    text = sections(claims, folder, to_folder)
    write_text(page, f"{before}{BEGIN}\n{text}\n{END}{after}")


def drawing(claim: Claim, frame: pd.DataFrame) -> str:
    """The figure of a claim, of its finite cases, as the text of an SVG file."""
    finite, _ = finite_cases(claim, frame)

    def plot(axes: Any) -> None:
        if len(finite):
            claim.plot(finite, axes)

    try:
        svg = draw(plot, claim.height, claim.name)
    except ImportError as error:
        raise CommandError(
            f"the figures need {error.name}; pip install 'norm_plugin[analysis]'"
        ) from error
    return svg.replace("currentColor", INK_ON_PAPER) + "\n"


def sections(claims: Mapping[str, Claim], folder: Path, to_folder: str) -> str:
    """What the page has of each claim that was measured into ``folder``, in Markdown.

    Args:
        to_folder: ``folder`` as the links of the page have it.
    """
    made = read_made(folder)
    measured = [claim for name, claim in claims.items() if name in made]
    if not measured:
        raise CommandError(f"{folder} holds no measured claim; measure some first")
    return "\n\n".join(
        section(number, claim, read_measurements(claim, folder), made[claim.name], to_folder)
        for number, claim in enumerate(measured, start=1)
    )


def section(number: int, claim: Claim, frame: pd.DataFrame, made: Row, to_folder: str) -> str:
    """What is claimed, how it was measured, and what was found."""
    title, _, text = claim.text.partition("\n")
    finite, left_out = finite_cases(claim, frame)
    tables = [pd.DataFrame([*left_out, *(claim.verdicts(finite) if len(finite) else [])])]
    tables += claim.tables(finite) if len(finite) else []
    return "\n\n".join(
        [
            f"## {number}. {title.rstrip('.')}",
            text.strip(),
            *(markdown(cells(table)) for table in tables if len(table)),
            f"![{claim.caption}]({to_folder}/{claim.name}.svg)",
            f"{claim.caption} Data: [{claim.name}.csv]({to_folder}/{claim.name}.csv).",
            origin(made),
        ]
    )


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """A table as it is shown: ``holds`` is last, and a column without any interval is left out."""
    table = table.astype(object).fillna("")
    if "holds" in table:
        table = table[[*table.columns.drop("holds"), "holds"]]
        table = table.drop(columns=INTERVAL) if table[INTERVAL].isin(["-", ""]).all() else table
    return table


def origin(made: Row) -> str:
    """The command, commit, date and versions behind the measurements of a claim."""
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items() if number)
    settings = ", ".join(f"{name} {value}" for name, value in made["settings"].items())
    return (
        f"Measured on {made['date']} at commit {short_commit(made['git'])} by `{made['command']}` "
        f"({settings}; {versions})."
    )
