"""Singular values of the embeddings of several checkpoints (PowerNorm paper, Figure 6).

    python -m norm_plugin.analysis.spectrum layernorm.pt powernorm.pt --out spectrum

prints a table, and writes ``spectrum.csv`` and ``spectrum.svg``. Singular values are divided by
the largest of their embedding, so that the curves show how fast they fall. The paper plots those
of the shared embedding of IWSLT14; without shared embeddings there is a curve for each side.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from norm_plugin.analysis.figures import Figure, draw, style
from norm_plugin.checkpoints.files import State, load_checkpoint
from norm_plugin.commands.command_line import (
    CommandError,
    require_folder,
    run_command,
    write_text,
)
from norm_plugin.models.resuming import flat_settings

EMBEDDING = "embed_tokens.weight"
SHARES = (0.25, 0.5, 0.75, 1.0)
"""At which shares of all singular values the table shows one."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values of one embedding.

    Attributes:
        checkpoint: its path.
        norm: the norm of the run; ``stock`` for a model of fairseq's own.
        side: ``encoder`` or ``decoder``, or ``shared``.
        shape: words and channels.
        values: (channels,), falling.
    """

    checkpoint: Path
    norm: str
    side: str
    shape: tuple[int, int]
    values: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def name(self) -> str:
        """Of the curve."""
        return f"{self.norm}, {self.side}, {self.checkpoint}"

    @property
    def normalized(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(channels,), from 1."""
        return self.values / self.values[0]

    @property
    def stable_rank(self) -> float:
        """sum s^2 / max s^2: how many directions share the embedding, from 1 to channels."""
        return float(np.sum(self.normalized**2))


def read_spectra(path: Path) -> list[Spectrum]:
    """The spectrum of each distinct embedding of a checkpoint.

    Raises:
        CommandError: it cannot be read, has no embedding, or one that is zero or not finite.
    """
    state = load_checkpoint(path)
    found = {
        name.split(".")[0]: weight
        for name, weight in state["model"].items()
        if name.endswith(EMBEDDING)
    }
    if not found:
        raise CommandError(f"{path} has no entry that ends in {EMBEDDING}")
    first, *others = found.values()
    if others and all(torch.equal(first, other) for other in others):
        found = {"shared": first}
    norm = norm_of(state)
    return [
        Spectrum(
            path, norm, side, tuple(weight.shape), singular_values(weight, f"{side} of {path}")
        )
        for side, weight in found.items()
    ]


def norm_of(state: State) -> str:
    """The norm of the run that wrote a checkpoint, as its settings say."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    return str(flat_settings(model).get("norm_type") or "stock") if model else "stock"


def singular_values(weight: torch.Tensor, where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of a (words, channels) matrix, in float64, falling."""
    matrix = weight.double().numpy()
    if not (np.isfinite(matrix).all() and matrix.any()):
        raise CommandError(f"the embedding of the {where} is zero or not finite")
    return np.linalg.svd(matrix, compute_uv=False)


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
        axes.set_xlabel("index, as a share of all singular values")
        axes.set_ylabel("singular value / largest")
        axes.set_yscale("log")
        axes.legend(loc="upper right", fontsize=8)

    return Figure(
        "spectrum",
        "Singular values of the embeddings, divided by the largest.",
        draw(plot, height=3.6, name="spectrum"),
        ("checkpoint", "norm", "side", "index", "singular_value", "normalized"),
        [
            (str(one.checkpoint), one.norm, one.side, index, float(value), float(share))
            for one in spectra
            for index, (value, share) in enumerate(zip(one.values, one.normalized), start=1)
        ],
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
    for path, text in zip(paths, (figure.data, figure.standalone)):
        write_text(path, text)
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.analysis.spectrum",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write FILE.csv and FILE.svg (default: only print)"
    )
    args = parser.parse_args(argv)
    if args.out is not None:
        require_folder(args.out)
    spectra = [one for path in args.checkpoints for one in read_spectra(path)]
    print(table_text(spectra))
    if args.out is not None:
        for path in write_figure(spectra, args.out):
            print(path)
    return 0


if __name__ == "__main__":
    run_command(main)
