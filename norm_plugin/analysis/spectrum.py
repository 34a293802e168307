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

from norm_plugin.analysis.figures import Figure, draw, legend_below, legend_height, style
from norm_plugin.analysis.record_figures import statistics_of
from norm_plugin.analysis.study import Study
from norm_plugin.checkpoints.spectrum import Spectrum, read_spectra
from norm_plugin.commands.command_line import (
    CommandError,
    check_output,
    run_command,
    write_text,
)

SHARES = (0.25, 0.5, 0.75, 1.0)
"""At which shares of all singular values the table shows one."""


def table_text(spectra: Sequence[Spectrum]) -> str:
    """A row a spectrum, columns aligned."""
    at = [f"at {share:.0%}" for share in SHARES]
    rows = [["norm", "side", "words", "channels", "largest", "stable rank", *at, "checkpoint"]]
    for one in spectra:
        places = [max(round(share * len(one.values)) - 1, 0) for share in SHARES]
        rows.append([one.norm, one.side, *map(str, one.shape)])
        rows[-1] += [f"{one.values[0]:.3f}", f"{one.stable_rank:.1f}"]
        rows[-1] += [f"{one.normalized[place]:.4f}" for place in places]
        rows[-1].append(str(one.checkpoint))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def spectrum_figure(spectra: Sequence[Spectrum]) -> Figure:
    """Singular values over their index, a line a spectrum."""

    def plot(axes: Any) -> None:
        for place, one in enumerate(spectra):
            share = np.arange(1, len(one.values) + 1) / len(one.values)
            axes.plot(share, one.normalized, **style(place), label=one.name)
        _name_axes(axes)

    return Figure(
        "spectrum",
        "Singular values of the embeddings, divided by the largest.",
        draw(plot, height=3.4 + legend_height([one.name for one in spectra]), name="spectrum"),
        ("checkpoint", "norm", "side", "index", "singular_value", "normalized"),
        [
            (str(one.checkpoint), one.norm, one.side, index, float(value), float(share))
            for one in spectra
            for index, (value, share) in enumerate(zip(one.values, one.normalized), start=1)
        ],
    )


def study_figure(study: Study) -> Figure | None:
    """The same for what is kept beside results: a line a setting and side, the mean over seeds."""
    lines: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for setting in study.settings:
        for run in setting.runs:
            for one in (statistics_of(run) or {}).get("spectra", []):
                values = np.array(one["values"])
                lines.setdefault((setting.name, one["side"]), []).append(values / values[0])
    if not lines:
        return None
    means = {key: np.mean(found, axis=0) for key, found in lines.items()}
    names = [one if side == "shared" else f"{one}, {side}" for one, side in means]

    def plot(axes: Any) -> None:
        for ((setting, side), values), name in zip(means.items(), names):
            look = style(study.names.index(setting))
            if side == "decoder":  # the encoder's has the same color
                look["linewidth"] = 0.8
            axes.plot(np.arange(1, len(values) + 1) / len(values), values, **look, label=name)
        _name_axes(axes)

    return Figure(
        "spectrum",
        "Singular values of the embeddings, divided by the largest: mean over seeds (PowerNorm "
        "paper, Figure 6).",
        draw(plot, height=3.4 + legend_height(names), name="spectrum"),
        ("setting", "side", "index", "normalized"),
        [
            (*key, index, f"{value:.5g}")
            for key, values in means.items()
            for index, value in enumerate(values, start=1)
        ],
    )


def _name_axes(axes: Any) -> None:
    axes.set_xlabel("index, as a share of all singular values")
    axes.set_ylabel("singular value / largest")
    axes.set_yscale("log")
    legend_below(axes)


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
    for path, text in zip(paths, (figure.data, figure.standalone)):
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


if __name__ == "__main__":
    run_command(main)
