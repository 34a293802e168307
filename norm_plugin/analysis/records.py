"""Statistics over training, as tables: what ``--norm-record`` has written, read again.

    norm-plugin records work/run/checkpoints/norm_record.jsonl.gz
    norm-plugin records FILE --figure powernorm-2 --sites encoder.layers.0
    norm-plugin records results/toy/powernorm-seed1.statistics.json.gz

The first form says what the file holds; the second prints the data of a figure as CSV, a row for
each update and site. The third reads what was kept beside a result, with three digits. What each
value is, is said in ``norm_plugin/models/measures.py``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, run_command
from norm_plugin.experiments.kept import (
    ENDINGS,
    STATISTICS,
    expand,
    read_statistics,
    record_lines,
)
from norm_plugin.models.measures import LEVELS

SITES, LAYERS = "sites", "layers"
Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""A header, and rows as long; None stands where a site has no such value."""


@dataclass(frozen=True)
class FigureData:
    """The values behind a figure of a paper, or one like it.

    Attributes:
        stack: the one in which the paper looks; all where it is empty.
        by_channel: the values are quantiles over channels.
        source: the figure of a paper that shows the same.
    """

    text: str
    part: str
    names: tuple[str, ...]
    stack: str = ""
    by_channel: bool = False
    source: str = ""

    @property
    def title(self) -> str:
        """A line for a caption, without a full stop."""
        text = f"{self.text[0].upper()}{self.text[1:]}"
        return f"{text} ({self.source})" if self.source else text


def _both(name: str) -> tuple[str, str]:
    return f"output_gradient_{name}", f"input_gradient_{name}"


FIGURES: dict[str, FigureData] = {
    "powernorm-2": FigureData(
        "distance of batch and running mean and variance",
        SITES,
        ("distance_mean", "distance_variance"),
        "encoder",
        source="PowerNorm paper, Figure 2",
    ),
    "powernorm-3": FigureData(
        "gradient parts of mean and variance",
        SITES,
        ("g_mu", "g_sigma2"),
        "encoder",
        source="PowerNorm paper, Figure 3",
    ),
    "powernorm-4": FigureData(
        "variance against quadratic mean: distances, and gradient parts",
        SITES,
        ("distance_variance", "distance_square", "g_sigma2", "g_psi2"),
        "encoder",
        source="PowerNorm paper, Figure 4",
    ),
    "powernorm-7": FigureData(
        "gamma / psi_B over the channels",
        SITES,
        ("gamma_over_psi",),
        "encoder",
        by_channel=True,
        source="PowerNorm paper, Figure 7",
    ),
    "adanorm-gradients": FigureData(
        "mean and variance of the gradient before and after a norm",
        SITES,
        (*_both("mean"), *_both("variance")),
        source="AdaNorm paper, section 3",
    ),
    "outliers": FigureData(
        "size and outliers of the inputs of norms", SITES, ("rms", "largest", "outlier_share")
    ),
    "layers": FigureData(
        "hidden states and gradients by layer",
        LAYERS,
        ("hidden_rms", "hidden_gradient_norm", "fc2.weight_gradient_norm"),
    ),
}
"""By its name on the command line."""


@dataclass(frozen=True)
class TrainingRecord:
    """The records of a run, in order of updates.

    Attributes:
        norms: placement, norm of each site and options, as logged when training started.
        every: a record is there of each ``every``-th update, from the first one on.
        channels: by the path of each recorded norm.
        updates: as they are in the file: ``update``, and ``sites`` and ``layers`` by path.
    """

    path: Path
    norms: str
    every: int
    channels: Mapping[str, int]
    updates: list[dict[str, Any]]

    def places(self, part: str, within: Sequence[str] = ()) -> list[str]:
        """The paths of the recorded ``sites`` or ``layers``; only those that begin as asked.

        Raises:
            CommandError: nothing recorded begins with one of ``within``.
        """
        paths = list(dict.fromkeys(path for line in self.updates for path in line[part]))
        for prefix in within:
            if not any(path.startswith(prefix) for path in paths):
                raise CommandError(f"{self.path} has no {prefix}; it has {', '.join(paths)}")
        return [path for path in paths if not within or path.startswith(tuple(within))]


def read_record(path: Path) -> TrainingRecord:
    """The records in a file of ``--norm-record``, or in the file kept beside a result.

    Raises:
        CommandError: no such file, no records in it, or of another version.
    """
    if path.name.endswith(ENDINGS[STATISTICS]):
        kept = read_statistics(path)["record"]
        if kept is None:
            raise CommandError(f"{path} holds no record: the run was made without --norm-record")
        return record_of(path, expand(kept))
    return record_of(path, record_lines(path))


def record_of(path: Path, lines: Sequence[dict[str, Any]]) -> TrainingRecord:
    """The same from the lines that were read from ``path``."""
    header, *updates = lines
    return TrainingRecord(path, header["norms"], header["every"], header["sites"], updates)


def table(
    record: TrainingRecord, names: Sequence[str], part: str = SITES, within: Sequence[str] = ()
) -> Table:
    """The values ``names`` of a part, a row for each update and site that has one of them.

    A value over channels has a column for each quantile: ``batch_mean_0.5`` is the median.
    """
    places = record.places(part, within)
    rows = [
        (line["update"], path, found)
        for line in record.updates
        for path in places
        if (found := line[part].get(path)) and any(name in found for name in names)
    ]
    if not rows:
        raise CommandError(
            f"{record.path} has no {', '.join(names)}: its norms ({record.norms}) lack them"
        )
    by_channel = {name for name in names for *_, found in rows if isinstance(found.get(name), list)}
    header = ["update", "layer" if part == LAYERS else "site"]
    for name in names:
        header += [f"{name}_{level:g}" for level in LEVELS] if name in by_channel else [name]
    return tuple(header), [
        (update, path, *(one for name in names for one in _cells(found, name, name in by_channel)))
        for update, path, found in rows
    ]


def _cells(found: Mapping[str, Any], name: str, by_channel: bool) -> Sequence[Any]:
    if by_channel:
        return found.get(name) or [None] * len(LEVELS)
    return [found.get(name)]


def figure_table(record: TrainingRecord, figure: str, within: Sequence[str] = ()) -> Table:
    """The data of a figure, one of :data:`FIGURES`."""
    data = FIGURES[figure]
    return table(record, data.names, data.part, within)


def summary(record: TrainingRecord) -> str:
    """What a file holds, as text."""
    updates = [line["update"] for line in record.updates]
    figures = [f"    {name}: {data.title}" for name, data in FIGURES.items()]
    return "\n".join(
        [
            f"{len(updates)} records of updates {updates[0]} to {updates[-1]}, every "
            f"{record.every}, at {len(record.channels)} norms",
            record.norms,
            "--figure prints the data of:",
            *figures,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="written by --norm-record")
    parser.add_argument("--figure", choices=FIGURES, help="print its data as CSV")
    parser.add_argument(
        "--sites",
        nargs="+",
        default=[],
        metavar="PATH",
        help="only the norms or layers whose paths begin so (default: all)",
    )
    args = parser.parse_args(argv)
    record = read_record(args.file)
    if args.figure is None:
        print(summary(record))
        return 0
    header, rows = figure_table(record, args.figure, args.sites)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return 0


if __name__ == "__main__":
    run_command(main)
