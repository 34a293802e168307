"""What the command lines of the benchmarks share."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from measuring.records import Record, append, provenance
from measuring.setups import Setup, parse_setup
from norm_plugin.commands.command_line import CommandError, at_least
from norm_plugin.kernels import VARIABLE, resolve

CPU, CUDA = "cpu", "cuda"
FUSED = {CPU: "cpu", CUDA: "triton"}
"""The choice of kernels that is fused on a device. If there are none, that is an error."""
GPU_FILES = {"layers.csv": "gpu.csv", "training.csv": "gpu_training.csv"}
"""Measurements on a CPU: the same on a GPU."""


def benchmark_parser(text: str | None, output: Path) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark of norms has; ``text`` explains it."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--norms", nargs="+", metavar="NORM[:KEY=VALUE,...]", help="default: every norm"
    )
    parser.add_argument(
        "--threads", type=at_least(1), default=2, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=output,
        metavar="FILE",
        help=f"append to it (default: benchmarks/results/{output.name})",
    )
    parser.add_argument("--no-csv", action="store_true", help="print only")
    parser.add_argument(
        "--check",
        action="store_true",
        help="name each missed target, and exit with 1 if there is one",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="try the command on tiny sizes; without --output it only prints",
    )
    return parser


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """The options of a benchmark that trains."""
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="binarized (default: Multi30k, prepared here)"
    )
    parser.add_argument(
        "--updates",
        type=at_least(1),
        default=6,
        metavar="N",
        help="timed, of each (default: %(default)s)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option of a benchmark that also measures a GPU, into a file of its own."""
    parser.add_argument("--device", choices=FUSED, default=CPU, help="default: %(default)s")


def parse_benchmark(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """The options of a ``benchmark_parser``."""
    args = parser.parse_args(argv)
    if getattr(args, "device", CPU) == CUDA:
        if not torch.cuda.is_available():
            raise CommandError("torch finds no CUDA device; give --device cpu")
        if args.output == parser.get_default("output"):
            args.no_csv |= args.quick
            args.output = args.output.with_name(GPU_FILES[args.output.name])
    if args.quick and args.output == parser.get_default("output"):
        args.no_csv = True  # tiny measurements must not be mistaken for results
    return args


def choose_setups(words: Sequence[str] | None, known: Sequence[Setup]) -> list[Setup]:
    """The setups that ``--norms`` asks for: of a norm alone, all those of it that are ``known``.

    Raises CommandError for a norm or an option that does not exist.
    """
    if words is None:
        return list(known)
    chosen: list[Setup] = []
    for word in words:
        try:
            named = [one for one in known if word in (one.norm, one.word)]
            chosen += named or [parse_setup(word)]
        except ValueError as error:
            raise CommandError(f"--norms: {error}") from error
    return chosen


def prepare_process(threads: int, kernels: str = "cpu") -> None:
    """Set the threads, and require the fused ``kernels`` of the device that is measured."""
    torch.set_num_threads(threads)
    require_kernels(kernels)


def require_kernels(kernels: str) -> None:
    """Raise CommandError where fused forms could not be told from plain ones.

    They could not if the environment chooses for both, or if there are no ``kernels``.
    """
    if os.environ.get(VARIABLE):
        raise CommandError(f"{VARIABLE} is set, which overrides every choice here; unset it")
    try:
        resolve(kernels)
    except ValueError as error:
        raise CommandError(str(error)) from error


def run_benchmark(
    args: argparse.Namespace,
    measurements: Iterable[Sequence[Record]],
    show: Callable[[Record], None],
    misses: Callable[[Sequence[Record]], Iterable[str]],
) -> int:
    """Print and store rows as they are measured; with --check, status 1 for a missed target."""
    origin = provenance(gpu=getattr(args, "device", CPU) == CUDA)
    measured: list[Record] = []
    for rows in measurements:
        for row in rows:
            show(row)
        if not args.no_csv:
            append(args.output, [{**origin, **row} for row in rows])
        measured += rows
    return report(misses(measured)) if args.check else 0


def quiet() -> None:
    """Hide the log lines of libraries below the level of a warning, and Python's warnings."""
    logging.getLogger().setLevel(logging.WARNING)
    warnings.simplefilter("ignore")


def report(misses: Iterable[str]) -> int:
    """Print each missed target; the status to exit with."""
    lines = list(misses)
    for line in lines:
        print(f"missed: {line}")
    print(f"{len(lines)} targets missed" if lines else "every target met")
    return 1 if lines else 0
