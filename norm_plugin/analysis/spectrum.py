"""Singular values of the embeddings of several checkpoints (PowerNorm paper, Figure 6).

    norm-plugin spectrum layernorm.pt powernorm.pt --out spectrum

prints a table, and writes ``spectrum.csv`` and ``spectrum.svg``. Singular values are divided by
the largest of their embedding, so that the curves show how fast they fall. The paper plots those
of the shared embedding of IWSLT14; without shared embeddings there is a curve for each side.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from norm_plugin.analysis.figures import (
    Figure,
    draw,
    legend_height,
    name_spectrum_axes,
    style,
)
from norm_plugin.checkpoints.spectrum import Spectrum, read_spectra
from norm_plugin.commands.command_line import (
    CommandError,
    check_output,
    write_text,
)

SHARES = (0.25, 0.5, 0.75, 1.0)
"""At which shares of all singular values the table shows one."""


def table_text(spectra: Sequence[Spectrum]) -> str:
    """A row a spectrum, columns aligned."""
    rows = []
    for one in spectra:
        places = {share: max(round(share * len(one.values)) - 1, 0) for share in SHARES}
        rows.append(
            {
                "norm": one.norm,
                "side": one.side,
                "words": one.shape[0],
                "channels": one.shape[1],
                "largest": f"{one.values[0]:.3f}",
                "stable rank": f"{one.stable_rank:.1f}",
                **{f"at {share:.0%}": f"{one.normalized[at]:.4f}" for share, at in places.items()},
                "checkpoint": str(one.checkpoint),
            }
        )
    return str(pd.DataFrame(rows).to_string(index=False, justify="left"))


def spectrum_figure(spectra: Sequence[Spectrum]) -> Figure:
    """Singular values over their index, a line a spectrum."""

    def plot(axes: Any) -> None:
        for place, one in enumerate(spectra):
            share = np.arange(1, len(one.values) + 1) / len(one.values)
            axes.plot(share, one.normalized, **style(place), label=one.name)
        name_spectrum_axes(axes)

    tables = [
        pd.DataFrame(
            {
                "checkpoint": str(one.checkpoint),
                "norm": one.norm,
                "side": one.side,
                "index": range(1, len(one.values) + 1),
                "singular_value": one.values,
                "normalized": one.normalized,
            }
        )
        for one in spectra
    ]
    return Figure(
        "spectrum",
        "Singular values of the embeddings, divided by the largest.",
        draw(plot, height=3.4 + legend_height([one.name for one in spectra]), name="spectrum"),
        pd.concat(tables, ignore_index=True),
    )


def write_figure(spectra: Sequence[Spectrum], out: Path) -> list[Path]:
    """Write ``out``.csv and ``out``.svg; an ending of these two in ``out`` is left out."""
    stem = out.with_suffix("") if out.suffix in (".csv", ".svg") else out
    try:
        figure = spectrum_figure(spectra)
    except ImportError as error:
        raise CommandError(
            f"--out needs {error.name}; pip install 'norm_plugin[analysis]'"
        ) from error
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".csv", ".svg")]
    for path, text in zip(paths, (figure.csv, figure.standalone)):
        write_text(path, text)
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin spectrum",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write FILE.csv and FILE.svg (default: only print)"
    )
    args = parser.parse_args(argv)
    if args.out is not None:
        check_output(args.out)
    spectra = [one for path in args.checkpoints for one in read_spectra(path)]
    print(table_text(spectra))
    if args.out is not None:
        for path in write_figure(spectra, args.out):
            print(path)
    return 0
