"""What a measured claim consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from norm_plugin.analysis.seeds import Sample
from norm_plugin.analysis.theory.batches import Batches

Row = dict[str, Any]
"""One measurement, by column: numbers, or words, as they are in the CSV file of the claim."""


@dataclass(frozen=True)
class Options:
    """What the command measures.

    Attributes:
        placements: words of ``--norm-placement``.
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


@dataclass(frozen=True)
class Table:
    """Cells as they are printed."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Findings:
    """What the measurements of a claim say.

    Attributes:
        sentences: each made from the numbers.
        tables: the same in full.
    """

    sentences: list[str]
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and how it is measured.

    Attributes:
        name: of its files.
        title: of its section.
        source: the paper, and the place in it.
        statement: the claim in the paper's symbols, paragraphs of Markdown.
        method: what is measured, paragraphs of Markdown.
        caption: of its figure.
        find: says what the measurements show.
        plot: draws them on matplotlib's axes.
        measure: gives those of one placement.
        measure_once: gives those that belong to no placement.
        height: of the figure, in inches.
    """

    name: str
    title: str
    source: str
    statement: Sequence[str]
    method: Sequence[str]
    caption: str
    find: Callable[[list[Row]], Findings]
    plot: Callable[[list[Row], Any], None]
    measure: Callable[[Options, str], list[Row]] = lambda options, placement: []
    measure_once: Callable[[Options], list[Row]] = lambda options: []
    height: float = 3.6


def with_interval(sample: Sample | None, digits: int = 3) -> str:
    """``1.50 (1.49 to 1.51)``: the mean over seeds and its 95 % interval, if there is one."""
    if sample is None:
        return "undefined"
    mean = f"{sample.mean:.{digits}f}"
    if sample.interval is None:
        return f"{mean} (one seed)"
    low, high = sample.interval
    return f"{mean} ({low:.{digits}f} to {high:.{digits}f})"
