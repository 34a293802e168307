#!/usr/bin/env python3
"""What the norms cost on a GPU, forward plus backward, with a quarter of the positions padding.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --quick    # tries the command out; only prints

Each norm that has a fused form is timed beside torch.nn.LayerNorm on the same tensors: fused,
plain, through torch.compile where that serves it, and as torch, Liger or apex have it where those
can be imported. Appends a row each to benchmarks/results/gpu.csv.

The floor is the time in which the device copies as many bytes as must move: x, dy and x once more
are read, y and dx written. Without a CUDA device: status 2, and nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measuring.command import require_kernels
from measuring.records import RESULTS, Record, append, provenance
from measuring.timing import Quartiles, alternate, quartiles
from norm_plugin.commands.command_line import at_least, run_command
from norm_plugin.kernels import describe, has_fused_form, set_kernels
from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec

OUTPUT = RESULTS / "gpu.csv"
SIZES = [(4096, 512), (8192, 1024), (16384, 4096)]
QUICK_SIZES = [(128, 32)]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FUSED = {"cuda": "triton", "cpu": "cpu"}
"""The choice of kernels that is fused on a device. If there are none, that is an error."""
OTHERS = [
    ("rmsnorm", "torch", "torch.nn", "RMSNorm"),
    ("layernorm", "liger", "liger_kernel.transformers", "LigerLayerNorm"),
    ("layernorm", "apex", "apex.normalization", "FusedLayerNorm"),
    ("rmsnorm", "liger", "liger_kernel.transformers", "LigerRMSNorm"),
    ("rmsnorm", "apex", "apex.normalization", "FusedRMSNorm"),
]
BATCH = 32
MOVED = 5  # tensors of N x C: x, y, dy, x and dx
COPIED = 1 << 28  # bytes, more than any cache holds
HEAD_START = 2_000_000  # clock cycles, about a millisecond
CUDA, CPU = "cuda", "cpu"
FEW = 2  # repetitions where a command is only tried out

Step = Callable[[], object]


def steps(norm: str, rows: int, channels: int, dtype: torch.dtype, device: str) -> dict[str, Step]:
    """By provider, what computes y and every gradient once; torch.nn.LayerNorm comes first."""
    torch.compiler.reset()  # beyond a number of variants it would leave all further ones plain
    shape = (rows // BATCH, BATCH, channels)
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(shape, device=device, dtype=dtype)
    lengths = torch.arange(BATCH, device=device) * shape[0] // (2 * BATCH) + shape[0] // 2
    mask = torch.arange(shape[0], device=device) >= lengths.unsqueeze(1)

    def step(call: Callable[[Tensor], Tensor], parameters: Any) -> Step:
        wanted = [x, *parameters]
        return lambda: torch.autograd.grad(call(x), wanted, dy)

    layer_norm = torch.nn.LayerNorm(channels, device=device, dtype=dtype)
    found = {"torch.nn.LayerNorm": step(layer_norm, layer_norm.parameters())}
    choices = {"fused": FUSED[device], "plain": "off", "compile": "compile"}
    for provider, choice in choices.items():
        module = build_norm(norm, channels).to(device, dtype)
        if choice == "compile" and not compiles(module, device):
            continue
        set_kernels(module, choice)
        found[provider] = step(partial(module, padding_mask=mask), module.parameters())
    for name, provider, source, kind in OTHERS:
        if name in (norm, "layernorm") and importable(source):
            other = getattr(importlib.import_module(source), kind)(channels).to(device, dtype)
            found[f"{provider} {kind}"] = step(other, other.parameters())
    return found


def compiles(norm: Norm, device: str) -> bool:
    """Whether to time ``norm`` through torch.compile, which serves no batch statistics.

    On the CPU it takes a compiler half a minute each, for times that no table shows.
    """
    return device != CPU and not norm.batch_statistics


def importable(module: str) -> bool:
    """Whether ``module`` can be imported here."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def microseconds(work: dict[str, Step], repetitions: int, device: str) -> dict[str, Quartiles]:
    """The quartiles of each provider's times on the device, in turn, after as many unmeasured.

    On a GPU, each begins with cold caches, and when all of it is queued: in training, too, Python
    runs ahead of the device.
    """
    if device == CPU:
        milliseconds = alternate(work, repetitions, repetitions)
        return {
            name: quartiles([1000 * ms for ms in found]) for name, found in milliseconds.items()
        }
    times: dict[str, list[float]] = {name: [] for name in work}
    cache = torch.empty(COPIED, dtype=torch.uint8, device=device)
    for turn in range(2 * repetitions):
        for name, step in work.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            cache.zero_()
            torch.cuda._sleep(HEAD_START)
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            if turn >= repetitions:
                times[name].append(1000 * begin.elapsed_time(end))
    return {name: quartiles(values) for name, values in times.items()}


def bytes_per_microsecond(device: str, repetitions: int) -> float:
    """Read and written by a copy on ``device``."""
    if device == CPU:
        repetitions = min(repetitions, FEW)
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy: dict[str, Step] = {"copy": lambda: target.copy_(source)}
    return 2 * COPIED / microseconds(copy, repetitions, device)["copy"].p50


def measure(
    norm: str, rows: int, channels: int, dtype: str, repetitions: int, speed: float, device: str
) -> list[dict[str, Any]]:
    """A row for each provider of ``norm``. speed: of a copy, bytes a microsecond."""
    work = steps(norm, rows, channels, DTYPES[dtype], device)
    floor = MOVED * rows * channels * DTYPES[dtype].itemsize / speed
    table = []
    for provider, (p25, p50, p75) in microseconds(work, repetitions, device).items():
        row = {"norm": norm, "rows": rows, "channels": channels, "dtype": dtype}
        row.update(provider=provider, repetitions=repetitions)
        numbers = {"p25_us": p25, "p50_us": p50, "p75_us": p75, "floor_us": floor}
        row.update({name: round(number, 2) for name, number in numbers.items()})
        table.append(row)
    return table


def show(table: list[dict[str, Any]]) -> None:
    """Print a line for each provider; torch.nn.LayerNorm is the first."""
    for row in table:
        ratio = row["p50_us"] / table[0]["p50_us"]
        print(
            f"{row['rows']:6} x {row['channels']:<5} {row['dtype']:8} {row['norm']:16} "
            f"{row['provider']:20} {row['p50_us']:9.1f} us, {ratio:5.2f} of LayerNorm, "
            f"{row['floor_us'] / row['p50_us']:4.0%} of the floor's speed",
            flush=True,
        )


def origin(device: str) -> Record:
    """The first columns of every row, of the GPU in place of the processor."""
    return {
        **provenance(),
        **({"device": torch.cuda.get_device_name()} if device == CUDA else {}),
        "cuda": str(torch.version.cuda or torch.version.hip),
        "kernels": describe(FUSED[device]),
    }


def size(text: str) -> tuple[int, int]:
    """The argparse type of rows and channels, such as ``4096x512``."""
    found = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if not found or int(found[1]) % BATCH:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size such as 4096x512, whose rows are a multiple of {BATCH}"
        )
    return int(found[1]), int(found[2])


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; ``argv`` is sys.argv without its first word."""
    fused = [name for name in NORM_TYPES if has_fused_form(norm_spec(name).cls)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--norms", nargs="+", choices=fused, default=fused, metavar="NORM")
    parser.add_argument("--sizes", nargs="+", type=size, metavar="NxC", help="rows x channels")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--repetitions", type=at_least(1), help="default: 100; 2 with --quick")
    parser.add_argument("--device", choices=(CUDA, CPU), default=CUDA, help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"default: {OUTPUT.name}")
    parser.add_argument("--no-csv", action="store_true", help="print only")
    parser.add_argument(
        "--quick", action="store_true", help="try the command on a tiny size; only prints"
    )
    args = parser.parse_args(argv)
    args.sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    args.repetitions = args.repetitions or (FEW if args.quick else 100)
    # Rows of tiny sizes, or of a CPU, must not be mistaken for results of a GPU
    if args.output is None and (args.quick or args.device == CPU):
        args.no_csv = True
    return args


def main(argv: list[str] | None = None) -> int:
    """The command line: measures every norm, size and dtype."""
    args = parse_args(argv)
    if args.device == CUDA and not torch.cuda.is_available():
        print("error: torch finds no CUDA device; nothing was measured", file=sys.stderr)
        sys.exit(2)
    require_kernels(FUSED[args.device])
    source = origin(args.device)
    speed = bytes_per_microsecond(args.device, args.repetitions)
    print(f"{source['device']}: a copy moves {speed / 1000:,.0f} GB/s")
    for (rows, channels), dtype, norm in product(args.sizes, args.dtypes, args.norms):
        table = measure(norm, rows, channels, dtype, args.repetitions, speed, args.device)
        show(table)
        if not args.no_csv:
            append(args.output or OUTPUT, [{**source, **row} for row in table])
    return 0


if __name__ == "__main__":
    run_command(main)
