#!/usr/bin/env python3
"""Measure what one layer of every norm costs, compared with torch.nn.LayerNorm on equal tensors.

    python benchmarks/layers.py          # the table of docs/speed.md; about 25 minutes
    python benchmarks/layers.py --norms adanorm powernorm:variant=released --providers fused

Providers: torch (LayerNorm, the unit of the ratios), plain (kernels off), fused (kernels auto),
compile (torch.compile of the plain form), copy (a copy of x, for LayerNorm only). A norm is
measured if it has such a form, on float32 batches (T, B, C) of which a quarter is padding.
powernorm is measured with each RMS pre-scaling, in its warm-up and after it.

Each provider takes turns with LayerNorm, A B A B, so that a machine that slows down does so for
both; the row of torch has LayerNorm's times of all these pairs. The process keeps the memory that
it frees (mallopt), for all providers: otherwise glibc returns blocks of some megabytes to the
system and gets them back unpredictably, and the page faults then cost more than the norms.

benchmarks/gpu.py measures the same on a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from measuring.command import (
    Setup,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    run_benchmark,
)
from measuring.records import Record
from measuring.timing import alternate, keep_freed_memory, quartiles
from norm_plugin.io.command_line import CommandError, at_least, run_command
from norm_plugin.kernels import AUTO, OFF, set_kernels
from norm_plugin.norms import NORM_TYPES

WARMUP = 5

# ---- what is measured -----------------------------------------------------------------------

SIZES = ((4096, 512), (4096, 1024))
"""The rows and channels that the documentation shows."""
HEADS = 8
"""The number of groups of a pre-scaling by heads: that of a base Transformer."""
ALWAYS = 1_000_000
"""A warm-up that no measurement exceeds."""
OPTIONS = {
    "adanorm": ("", "variant=released"),
    "powernorm": tuple(
        f"{scale} warmup_updates={updates}"
        for scale in (
            *("layer_scale_groups=0", "layer_scale_groups=1", f"layer_scale_groups={HEADS}"),
            f"variant=released layer_scale_groups={HEADS}",
        )
        for updates in (0, ALWAYS)
    ),
}
"""The options with which a norm is measured; other norms are measured with their defaults."""


def layer_setups() -> list[Setup]:
    """Return every norm of the registry with each of its :data:`OPTIONS`."""
    return [Setup(name, options) for name in NORM_TYPES for options in OPTIONS.get(name, ("",))]


# ---- the forms of a layer -------------------------------------------------------------------

UNIT = "torch"
"""The provider with which all others are compared."""
Call = Callable[[], object]


class Data(NamedTuple):
    """One batch: x and dL/dy, (T, B, C), and the padding mask, (B, T)."""

    x: Tensor
    dy: Tensor
    mask: Tensor


def make_data(
    rows: int, channels: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Data:
    """Return a batch of ``rows`` positions, a quarter of them padding.

    Its sentences have T/2 to T positions; T * B = rows, and T is the largest power of two that
    is at most B. Raises ValueError if rows is not a multiple of T.
    """
    longest = 2 ** ((rows.bit_length() - 1) // 2)
    if rows < 4 or rows % longest:
        raise ValueError(f"rows is {rows}; take a power of two from 4, or a multiple of {longest}")
    batch = rows // longest
    x, dy = torch.randn(2, longest, batch, channels, device=device).to(dtype)
    lengths = torch.linspace(longest / 2, longest, batch, device=device).round()
    mask = torch.arange(longest, device=device) >= lengths.unsqueeze(1)
    return Data(x.mul_(2).add_(0.5).requires_grad_(), dy, mask)


def of_torch(setup: Setup, data: Data) -> Call:
    """Return torch.nn.LayerNorm."""
    return partial(train, torch.nn.LayerNorm(data.x.size(-1)), data)


def of_kernels(choice: str, setup: Setup, data: Data) -> Call | None:
    """Return the norm with ``--norm-kernels choice``; None if that is the plain form anyway."""
    norm = setup.build(data.x.size(-1)).train()
    set_kernels(norm, choice)
    if choice != OFF and norm.fused is None:
        return None
    return partial(train, partial(norm, padding_mask=data.mask), data)


def of_copy(setup: Setup, data: Data) -> Call | None:
    """Return a copy of x, which reads and writes N C numbers; only for ``layernorm``."""
    target = torch.empty_like(data.x, requires_grad=False)
    source = data.x.detach()
    return partial(target.copy_, source) if setup.norm == "layernorm" else None


def train(layer: Callable[[Tensor], Tensor], data: Data) -> None:
    """Make a forward and a backward pass."""
    data.x.grad = None
    layer(data.x).backward(data.dy)


PROVIDERS: dict[str, Callable[[Setup, Data], Call | None]] = {
    UNIT: of_torch,
    "plain": partial(of_kernels, OFF),
    "fused": partial(of_kernels, AUTO),
    "compile": partial(of_kernels, "compile"),
    "copy": of_copy,
}


def make_calls(setup: Setup, data: Data, providers: list[str]) -> dict[str, Call]:
    """Return the calls of the available providers for ``setup``."""
    # torch.compile keeps a few graphs per function, and then runs it uncompiled without a message
    torch._dynamo.reset()
    made = {name: PROVIDERS[name](setup, data) for name in providers}
    return {name: call for name, call in made.items() if call is not None}


# ---- measurements ---------------------------------------------------------------------------


def measure(setup: Setup, rows: int, channels: int, args: argparse.Namespace) -> list[Record]:
    """Return a row for each provider of ``setup`` at one size."""
    torch.manual_seed(1)
    try:
        data = make_data(rows, channels)
        calls = make_calls(setup, data, [UNIT, *args.providers])
    except ValueError as error:
        raise CommandError(f"{setup} at {rows:,} x {channels:,}: {error}") from error
    unit = calls.pop(UNIT)
    of_unit: list[float] = []
    measured: list[Record] = []
    for name, call in calls.items():
        # two at a time: otherwise the plain form's use of the caches would slow down the next one
        pair = alternate({UNIT: unit, name: call}, args.repetitions, WARMUP)
        of_unit += pair[UNIT]
        ratio = quartiles(pair[name]).p50 / quartiles(pair[UNIT]).p50
        measured.append(_row(name, pair[name], ratio))
    of_unit = of_unit or alternate({UNIT: unit}, args.repetitions, WARMUP)[UNIT]
    measured.insert(0, _row(UNIT, of_unit, 1.0))
    place = {"rows": rows, "channels": channels}
    return [{**setup._asdict(), **place, **row} for row in measured]


def _row(provider: str, times: Sequence[float], ratio: float) -> Record:
    spread = quartiles(times).rounded(4)
    return {"provider": provider, "repetitions": len(times), **spread, "ratio": round(ratio, 4)}


def sizes_of(args: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the rows and channels to measure."""
    if args.quick and not (args.rows or args.channels):
        return [(64, 32)]
    rows = args.rows or sorted({size[0] for size in SIZES})
    channels = args.channels or sorted({size[1] for size in SIZES})
    return list(product(rows, channels))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "layers.csv")
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=PROVIDERS,
        metavar="P",
        help=f"default: {', '.join(PROVIDERS)}, as far as they apply",
    )
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="positions per batch")
    parser.add_argument("--channels", type=int, nargs="+", metavar="C")
    text = "default: 50; 2 with --quick"
    parser.add_argument("--repetitions", type=at_least(1), metavar="N", help=text)
    args = parse_benchmark(parser, argv)
    args.providers = args.providers or list(PROVIDERS)
    if args.repetitions is None:
        args.repetitions = 2 if args.quick else 50
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    args = parse_args(argv)
    setups = choose_setups(args.norms, layer_setups())
    prepare_process(args.threads)
    keep_freed_memory()
    measurements = (
        measure(setup, rows, channels, args)
        for (rows, channels), setup in product(sizes_of(args), setups)
    )
    run_benchmark(args, measurements)
    return 0


if __name__ == "__main__":
    run_command(main)
