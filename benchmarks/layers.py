#!/usr/bin/env python3
"""What one layer of every norm costs, beside torch.nn.LayerNorm on the same tensors.

    python benchmarks/layers.py [--check]          # the table of docs/kernels.md; about 25 minutes
    python benchmarks/layers.py --growth           # for plot.py: time against size
    python benchmarks/layers.py --norms adanorm powernorm:variant=released --providers fused
    python benchmarks/layers.py --device cuda      # into gpu.csv

Providers: torch (LayerNorm, the unit of the ratios), plain (kernels off), fused (kernels auto),
compile (torch.compile of the plain form), reference (the slow transcription that the tests compare
with, in numpy), copy (of x, beside LayerNorm). A norm is measured where it has such a form, on
float32 batches (T, B, C) a quarter of which is padding. powernorm is measured with each
layer-scale, in its warm-up and after it.

Each provider takes turns with LayerNorm, A B A B, so a machine that slows down does so for both;
the row of torch holds LayerNorm's times of all these pairs. The process keeps the memory that it
frees (mallopt), alike for all: else glibc returns blocks of some megabytes to the system and gets
them anew by chance, and the page faults then cost more than the norms.

On a GPU the layers of torch.nn.RMSNorm, Liger-Kernel and apex are measured too, where they can be
imported, in each of --dtypes. ``copy_share`` is the share of the speed of a copy on the device: the
time in which it would move x, dy and x once more, y and dx, over the time of the layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch

from measuring.command import (
    CPU,
    CUDA,
    FUSED,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    run_benchmark,
)
from measuring.memory import keep_freed_memory
from measuring.providers import (
    BOTH,
    DIRECTIONS,
    OTHERS,
    PROVIDERS,
    SLOW,
    UNIT,
    Call,
    make_calls,
    make_data,
)
from measuring.records import Record
from measuring.setups import SIZES, TARGETS, Setup, layer_setups
from measuring.timing import alternate, copied_bytes_per_ms, on_cpu, on_gpu, quartiles
from norm_plugin.commands.command_line import CommandError, at_least, run_command

WARMUP = 5
FORMS = ("torch", "plain", "fused", "compile", "reference", "copy")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MOVED = 5  # tensors of N x C: x, y, dy, x and dx
GROWTH_ROWS = (256, 1024, 4096, 16384, 65536)
GROWTH_CHANNELS = (64, 256, 1024, 4096, 8192)
GPU_ROWS, GPU_CHANNELS = (4096, 16384, 65536), (512, 1024, 4096)
GROWTH = [(n, 512) for n in GROWTH_ROWS] + [(4096, c) for c in GROWTH_CHANNELS]


def measure(
    setup: Setup, rows: int, channels: int, args: argparse.Namespace, dtype: str = "float32"
) -> list[Record]:
    """A row for each provider of ``setup`` at one size."""
    torch.manual_seed(1)
    providers = [UNIT, *args.providers]
    providers += OTHERS.get(setup.norm, ()) if args.device == CUDA else ()
    try:
        data = make_data(rows, channels, DTYPES[dtype], args.device)
        calls = make_calls(setup, data, args.direction, providers)
    except ValueError as error:
        raise CommandError(f"{setup} at {rows:,} x {channels:,}: {error}") from error
    unit = calls.pop(UNIT)
    timed = on_gpu if args.device == CUDA else on_cpu
    pairs = [
        _pair(unit, name, call, SLOW.get(name, args.repetitions), timed)
        for name, call in calls.items()
    ] or [alternate({UNIT: unit}, args.repetitions, WARMUP, timed)]
    place = {"rows": rows, "channels": channels, "direction": args.direction}
    rows_of_all = [_row(UNIT, [ms for pair in pairs for ms in pair[UNIT]], 1.0)]
    rows_of_all += [
        _row(name, pair[name], quartiles(pair[name]).p50 / quartiles(pair[UNIT]).p50)
        for name, pair in zip(calls, pairs)
    ]
    if args.device == CUDA:
        floor = MOVED * data.x.nbytes / args.copied_bytes_per_ms
        place["dtype"] = dtype
        for row in rows_of_all:
            row["copy_share"] = round(floor / row["p50_ms"], 4)
    return [{**setup._asdict(), **place, **row} for row in rows_of_all]


def _pair(
    unit: Call, name: str, call: Call, repetitions: int, timed: Callable[[Call], float]
) -> dict[str, list[float]]:
    # Two at a time: what the plain form leaves in the caches would else be the next one's burden
    return alternate({UNIT: unit, name: call}, repetitions, min(WARMUP, repetitions), timed)


def _row(provider: str, times: Sequence[float], ratio: float) -> Record:
    spread = quartiles(times).rounded(4)
    return {"provider": provider, "repetitions": len(times), **spread, "ratio": round(ratio, 4)}


def misses(rows: Sequence[Record], setups: Sequence[Setup]) -> Iterator[str]:
    """A line for each target of ``setups`` that ``rows`` miss, or that nobody measured."""
    ratios = {
        (Setup(row["norm"], row["options"]), (row["rows"], row["channels"])): row["ratio"]
        for row in rows
        if row["provider"] == "fused" and row["direction"] == BOTH
    }
    for setup in setups:
        for size in SIZES if setup in TARGETS else ():
            ratio, bound = ratios.get((setup, size)), TARGETS[setup]
            where = f"{setup} at {size[0]:,} x {size[1]:,}"
            if ratio is None:
                yield f"{where}: not measured; at most {bound:.1f} is wanted"
            elif ratio > bound:
                yield f"{where}: {ratio:.2f}, at most {bound:.1f} is wanted"


def sizes_of(args: argparse.Namespace) -> list[tuple[int, int]]:
    """Rows and channels to measure at."""
    if args.growth:
        return GROWTH
    if args.quick and not (args.rows or args.channels):
        return [(64, 32)]
    on_device = args.device == CUDA
    rows = args.rows or (GPU_ROWS if on_device else sorted({size[0] for size in SIZES}))
    channels = args.channels or (GPU_CHANNELS if on_device else sorted({size[1] for size in SIZES}))
    return list(product(rows, channels))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "layers.csv", "targets", "device")
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=PROVIDERS,
        metavar="P",
        help=f"default: {', '.join(FORMS)}, as far as they apply",
    )
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="positions of a batch")
    parser.add_argument("--channels", type=int, nargs="+", metavar="C")
    parser.add_argument(
        "--direction", choices=DIRECTIONS, default=BOTH, help="default: %(default)s"
    )
    parser.add_argument(
        "--repetitions",
        type=at_least(1),
        metavar="N",
        help="default: 50; 10 with --growth; 2 with --quick",
    )
    parser.add_argument(
        "--growth",
        action="store_true",
        help="rows 256 to 65,536 at 512 channels, channels 64 to 8,192 at 4,096 rows",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, help="default: float32; on a GPU all of them"
    )
    args = parse_benchmark(parser, argv)
    if args.device == CPU and args.dtypes not in (None, ["float32"]):
        parser.error("--dtypes: the fused forms of a CPU are of float32; give --device cuda")
    args.dtypes = args.dtypes or (list(DTYPES) if args.device == CUDA else ["float32"])
    args.providers = args.providers or (["plain", "fused"] if args.growth else list(FORMS))
    if args.repetitions is None:
        args.repetitions = 2 if args.quick else 10 if args.growth else 50
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --check the status is 1 where a target is missed."""
    args = parse_args(argv)
    setups = choose_setups(args.norms, layer_setups())
    prepare_process(args.threads, FUSED[args.device])
    keep_freed_memory()
    if args.device == CUDA:
        args.copied_bytes_per_ms = copied_bytes_per_ms(args.repetitions)
        print(f"A copy on the GPU moves {args.copied_bytes_per_ms / 1e6:,.0f} GB/s")
    measurements = (
        measure(setup, rows, channels, args, dtype)
        for (rows, channels), dtype, setup in product(sizes_of(args), args.dtypes, setups)
    )
    return run_benchmark(args, measurements, partial(misses, setups=setups))


if __name__ == "__main__":
    run_command(main)
