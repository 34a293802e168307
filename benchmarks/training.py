#!/usr/bin/env python3
"""What training costs with every norm, beside stock fairseq's Transformer with LayerNorm.

    NORM_DATA_DIR=raw python benchmarks/training.py [--check]   # about 40 minutes on two cores
    python benchmarks/training.py --norms adanorm --kernels auto off compile --data DIR/bin
    python benchmarks/training.py --recipe multi30k_cpu         # a tiny model
    python benchmarks/training.py --device cuda                 # into gpu_training.csv

norm_transformer_iwslt_de_en with the norm and transformer_iwslt_de_en, both pre-norm and with all
else of configs/iwslt14_de_en.yaml, or the models of another recipe, train in one process by
fairseq's own trainer on the same batches, which hold up to 4,096 tokens of Multi30k: an update of
one, an update of the other, and so on. The ratio is that of two updates on one batch; its quartiles
are over the batches. The C library allocates as it does for a user.

Memory is measured in a process for each model, in which freed blocks leave the process at once
(mallopt): the most resident memory during a few updates, less what was resident before the model
was built. On a GPU it is the most that torch has allocated there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from measuring.command import (
    CUDA,
    FUSED,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    run_benchmark,
)
from measuring.memory import peak_mib, resident_mib, return_freed_memory
from measuring.records import Record
from measuring.setups import Setup
from measuring.timing import alternate, quartiles
from measuring.training import RECIPES, STOCK, Run
from norm_plugin.commands.command_line import CommandError, at_least, run_command
from norm_plugin.kernels import AUTO, KERNELS
from norm_plugin.norms import NORM_TYPES

ROOT = Path(__file__).resolve().parents[1]
MERGES = 10_000
PREPARED = ROOT / "work" / "data" / f"multi30k-{MERGES}"
"""Where scripts/run_multi30k.sh has it too."""
LEAST_SPEED, MOST_MEMORY = 0.97, 1.02
"""Targets, as ratios to stock fairseq."""
WARMUP = 1
Unit = tuple[Run, float | None]
"""Stock fairseq's run and its peak memory in MiB."""


def training_setups() -> list[Setup]:
    """Every norm as the recipe has it, powernorm past its warm-up, which no short run ends, and
    what ``--norm-fused-dropout`` gives.
    """
    more = [Setup("powernorm", "warmup_updates=0"), Setup("layernorm", "fused_dropout=on")]
    return [Setup(name) for name in NORM_TYPES] + more


def prepared_data() -> Path:
    """Multi30k, binarized: made where it is not there yet."""
    raw = os.environ.get("NORM_DATA_DIR")
    command = [sys.executable, ROOT / "data-prep" / "multi30k.py"]
    command += ["--out", PREPARED, "--merges", MERGES]
    command += ["--raw", Path(raw, "multi30k")] if raw else []
    result = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL)
    if result.returncode:
        raise CommandError("cannot prepare Multi30k (see above); give binarized --data")
    return PREPARED / "bin"


def measure(setup: Setup, kernels: str, unit: Unit, args: argparse.Namespace) -> Record:
    """The row of ``setup``."""
    stock, stock_peak = unit
    run = Run(setup, args.data, kernels, args.quick, args.device, args.recipe)
    batches = stock.batches(WARMUP + args.updates)
    calls = {"stock": stock.updates(batches), "norm": run.updates(batches)}
    times = alternate(calls, args.updates, WARMUP)
    ratios = [theirs / ours for theirs, ours in zip(times["stock"], times["norm"])]
    spread = quartiles(times["norm"])
    peak = peak_of(setup, kernels, args)
    return {
        "recipe": args.recipe,
        **setup._asdict(),
        "kernels": kernels,
        "tokens": run.cfg.dataset.max_tokens,
        "updates": args.updates,
        "stock_p50_ms": round(quartiles(times["stock"]).p50, 1),
        **spread.rounded(1),
        "updates_per_s": round(1000 / spread.p50, 4),
        **quartiles(ratios).rounded(4, "ratio_{}"),
        "peak_mib": peak and round(peak, 1),
        "peak_ratio": peak and stock_peak and round(peak / stock_peak, 4),
    }


def peak_of(setup: Setup, kernels: str, args: argparse.Namespace) -> float | None:
    """Peak memory in MiB, measured in another process; None where none is asked for."""
    if not args.memory_updates:
        return None
    command = [sys.executable, __file__, "--peak", setup.word, "--data", args.data]
    command += ["--threads", args.threads, "--device", args.device, "--kernels", kernels]
    command += ["--recipe", args.recipe]
    command += ["--memory-updates", args.memory_updates, *["--quick"] * args.quick]
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise CommandError(f"cannot measure the memory of {setup} (see above)")
    return float(result.stdout.split()[-1])


def print_peak(setup: Setup, args: argparse.Namespace) -> None:
    """What the other process does."""
    return_freed_memory()
    before = resident_mib()
    run = Run(setup, args.data, args.kernels[0], args.quick, args.device, args.recipe)
    update = run.updates(run.batches(args.memory_updates))
    for _ in range(args.memory_updates):
        update()
    on_gpu = args.device == CUDA
    print(torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_mib() - before)


def misses(rows: Sequence[Record]) -> Iterator[str]:
    """A line for each target that the norms with their fused forms miss."""
    for row in rows:
        if row["kernels"] != AUTO:
            continue
        name = Setup(row["norm"], row["options"])
        if row["ratio_p50"] < LEAST_SPEED:
            yield f"{name}: {row['ratio_p50']:.3f} of stock's updates/s, {LEAST_SPEED} is wanted"
        if row["peak_ratio"] is None:
            yield f"{name}: memory not measured"
        elif row["peak_ratio"] > MOST_MEMORY:
            yield f"{name}: {row['peak_ratio']:.3f} of stock's memory, {MOST_MEMORY} is allowed"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "training.csv", "targets", "training", "device")
    parser.add_argument(
        "--kernels",
        nargs="+",
        choices=KERNELS,
        default=[AUTO],
        metavar="K",
        help=f"of {', '.join(KERNELS)} (default: {AUTO})",
    )
    parser.add_argument(
        "--recipe", choices=RECIPES, default=RECIPES[0], help="default: %(default)s"
    )
    parser.add_argument(
        "--memory-updates",
        type=at_least(0),
        default=2,
        metavar="N",
        help="during which memory is measured; 0: not at all (default: %(default)s)",
    )
    parser.add_argument(
        "--peak", metavar="NORM", help=f"print the peak memory of one norm, or {STOCK}, in MiB"
    )
    return parse_benchmark(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --check the status is 1 where a target is missed."""
    args = parse_args(argv)
    prepare_process(args.threads, FUSED[args.device])
    args.data = args.data or prepared_data()
    if args.peak:
        print_peak(choose_setups([args.peak], [STOCK, *training_setups()])[0], args)
        return 0
    setups: list[Any] = choose_setups(args.norms, training_setups())
    stock = Run(STOCK, args.data, AUTO, args.quick, args.device, args.recipe)
    unit = stock, peak_of(STOCK, AUTO, args)
    measurements = (
        [measure(setup, kernels, unit, args)] for setup in setups for kernels in args.kernels
    )
    return run_benchmark(args, measurements, misses)


if __name__ == "__main__":
    run_command(main)
