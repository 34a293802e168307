"""What the command lines of the benchmarks share."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from measuring.records import RESULTS, Record, append, provenance
from norm_plugin.io.command_line import CommandError, at_least
from norm_plugin.kernels import VARIABLE, resolve
from norm_plugin.norms import Norm, build_norm, norm_spec

CPU, CUDA = "cpu", "cuda"
FUSED = {CPU: "cpu", CUDA: "triton"}
"""The choice of kernels that is fused on each type of device; it is an error if there are none."""


class Setup(NamedTuple):
    """A norm and the options that are not its defaults, as ``key=value`` separated by blanks."""

    norm: str
    options: str = ""

    def values(self) -> dict[str, str]:
        """Return the options by name."""
        return dict(word.partition("=")[::2] for word in self.options.split())

    def build(self, channels: int) -> Norm:
        """Return the norm; raise ValueError for an unknown norm or option."""
        return build_norm(self.norm, channels, **self.values())

    def __str__(self) -> str:
        return f"{self.norm} {self.options}".strip()


def parse_setup(text: str) -> Setup:
    """Parse ``powernorm:variant=released,sync=on``; ValueError for an unknown norm or option."""
    norm, _, options = text.partition(":")
    setup = Setup(norm, options.replace(",", " ").strip())
    norm_spec(norm).parse(setup.values())
    return setup


def choose_setups(names: Sequence[str] | None, known: Sequence[Setup]) -> list[Setup]:
    """Return the setups that ``--norms`` selects; a norm without options selects all ``known``.

    Raises:
        CommandError: a norm or an option does not exist.
    """
    if names is None:
        return list(known)
    chosen: list[Setup] = []
    for name in names:
        try:
            chosen += [setup for setup in known if setup.norm == name] or [parse_setup(name)]
        except ValueError as error:
            raise CommandError(f"--norms: {error}") from error
    return chosen


def plain_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows ``text``, the docstring of a benchmark, unformatted."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def benchmark_parser(
    text: str | None, output: str, training: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options that the benchmarks of norms share.

    Args:
        text: explains the benchmark.
        output: the name of its file in ``benchmarks/results/``.
        training: whether it trains a model, which takes two more options.
    """
    parser = plain_parser(text)
    add = parser.add_argument
    add("--norms", nargs="+", metavar="NORM[:KEY=VALUE,...]", help="default: every norm")
    add("--threads", type=at_least(1), default=2, metavar="N", help="default: %(default)s")
    add(
        "--output",
        type=Path,
        default=RESULTS / output,
        metavar="FILE",
        help=f"append rows to this file (default: benchmarks/results/{output})",
    )
    add("--no-csv", action="store_true", help="print only")
    add(
        "--quick",
        action="store_true",
        help="try the command with tiny sizes; without --output it only prints",
    )
    if training:
        add("--data", type=Path, metavar="DIR", help="binarized data (default: Multi30k)")
        add(
            "--updates",
            type=at_least(1),
            default=6,
            metavar="N",
            help="timed repetitions of each (default: %(default)s)",
        )
    return parser


def parse_benchmark(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Return the options of a ``benchmark_parser``."""
    args = parser.parse_args(argv)
    if args.output == parser.get_default("output"):
        args.no_csv |= args.quick  # tiny measurements must not be mistaken for results
    return args


def prepare_process(threads: int, kernels: str = "cpu") -> None:
    """Set the threads, and hide log messages of libraries; require fused ``kernels``.

    Raises:
        CommandError: the environment chooses the kernels for all forms, or there are none, so that
            fused forms could not be distinguished from plain ones.
    """
    quiet()
    torch.set_num_threads(threads)
    if os.environ.get(VARIABLE):
        raise CommandError(f"{VARIABLE} is set, which overrides every choice here; unset it")
    try:
        resolve(kernels)
    except ValueError as error:
        raise CommandError(str(error)) from error


def quiet() -> None:
    """Hide log messages of libraries below warnings, and Python's warnings."""
    logging.getLogger().setLevel(logging.WARNING)
    warnings.simplefilter("ignore")


def run_benchmark(args: argparse.Namespace, measurements: Iterable[Sequence[Record]]) -> None:
    """Print and store rows as they are measured."""
    origin = provenance()
    for rows in measurements:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if not args.no_csv:
            append(args.output, [{**origin, **row} for row in rows])
