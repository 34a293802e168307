#!/usr/bin/env python3
"""Measure the norms on a GPU, host and device apart, and whole updates, in ten minutes.

    python benchmarks/gpu.py --data DIR/bin --minutes 8
    python benchmarks/gpu.py --device cpu --quick --data DIR/bin     # try it without a GPU

Parts, the most important first. Each appends its rows at once to its file in benchmarks/results/
(--output names another folder), and starts nothing when its time is over. The same command goes on
after an interruption: what the files have of this code and device is not measured again.

- layers, gpu_layers.csv: each norm with its kernels, and plain and compiled while a half of the
  time is left, beside the layers of torch, Liger-Kernel and apex: ``host_us`` is the host's time of
  a forward and backward pass when the queue is empty, ``hot_host_us`` that of passes without a
  pause, ``device_us`` the device's, with cold caches, when everything is queued before (with its
  quartiles); ``kernels`` is the number of launched kernels, and ``kernels_us`` the sum of their
  times; ``copy_share`` is the time in which the device would copy what the layer reads and writes
  at least (x, dy and x again, y and dx) over ``device_us``; the ratios are to torch.nn.LayerNorm
- updates, gpu_updates.csv: pairs of updates with stock fairseq, of the base Transformer of
  configs/iwslt14_de_en.yaml: ``ratio`` is stock's time over the norm's on one batch, ``host_ms``
  what passes until all is queued, ``busy_ms`` the time of the ``kernels`` of one update, and
  ``peak_mib`` the most that the update allocates. Both have the same optimizer, but in the first
  row, which compares the optimizers of stock fairseq
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from fairseq.logging import metrics
from torch import Tensor

from layers import Data, make_data, train
from measuring.command import CPU, CUDA, FUSED, Setup, plain_parser, prepare_process
from measuring.records import RESULTS, Record, append, provenance
from measuring.timing import quartiles
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.kernels import AUTO, OFF, set_kernels
from norm_plugin.norms import NORM_TYPES
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from training import STOCK, Run, prepared_multi30k

MEBI = 1 << 20
MOVED = 5  # tensors of N x C: x, y, dy, x and dx
COLD = 1 << 28  # bytes, more than any cache holds
SIZES = ((16384, 1024), (4096, 512))
DTYPES = (torch.float32, torch.bfloat16)
FORMS = {"fused": AUTO, "compile": "compile", "plain": OFF}
LIBRARY = "library"
LIBRARIES = (
    "torch.nn.LayerNorm",
    "torch.nn.RMSNorm",
    "torch.nn.BatchNorm1d",
    "liger_kernel.transformers.LigerLayerNorm",
    "liger_kernel.transformers.LigerRMSNorm",
    "apex.normalization.FusedLayerNorm",
    "apex.normalization.FusedRMSNorm",
)
AFTER, DURING = "warmup_updates=0", "warmup_updates=1000000"
FIRST = (
    Setup("layernorm"),
    Setup("powernorm", AFTER),
    Setup("powernorm", DURING),
    Setup("batchnorm"),
    Setup("rmsnorm"),
)
"""The norms that are measured before all others."""
MORE = (
    Setup("powernorm", f"layer_scale_groups=8 {AFTER}"),
    Setup("powernorm", f"layer_scale_groups=0 {AFTER}"),
    Setup("powernorm", f"variant=released layer_scale_groups=8 {AFTER}"),
    Setup("powernorm", f"variant=released layer_scale_groups=8 {DURING}"),
    Setup("adanorm", "variant=released"),
)
ADAM, FOREACH = "adam", "adam_foreach"
PAIRS, WARMUP = 50, 12


def all_setups() -> list[Setup]:
    """Return every norm, the most important first."""
    first = [*FIRST, *(Setup(name) for name in NORM_TYPES if name != "powernorm"), *MORE]
    return list(dict.fromkeys(first))


class Window:
    """The time that is left, and the rows that exist.

    Args:
        args: the options of the command.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.on_gpu = args, args.device == CUDA
        self.failed = False
        self.start = time.monotonic()
        self.seconds = 60.0 * args.minutes
        self.origin = provenance(gpu=self.on_gpu)
        self.cycles_per_ms = self.copied_bytes_per_us = float("nan")
        self.cold = torch.empty(COLD if self.on_gpu else 1, dtype=torch.uint8, device=args.device)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.start + self.seconds - time.monotonic()

    def file(self, part: str) -> Path:
        """Return the file of a part."""
        return Path(self.args.output) / f"gpu_{part}.csv"

    def has(self, part: str, **what: object) -> bool:
        """Return whether a row of this code and device exists."""
        if not self.file(part).exists():
            return False
        rows = pd.read_csv(self.file(part), dtype=str, keep_default_na=False)
        wanted = {"commit": self.origin["commit"], "device": self.origin["device"], **what}
        same = [rows[name] == str(value) for name, value in wanted.items()]
        return bool(pd.concat(same, axis="columns").all(axis="columns").any())

    def write(self, part: str, row: Record) -> None:
        """Print a row and append it to the file of its part."""
        print(part, "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        append(self.file(part), [{**self.origin, **row}])

    @contextlib.contextmanager
    def attempt(self, what: object) -> Iterator[None]:
        """Print an error of a measurement, which must not cost the others."""
        try:
            yield
        except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
            self.failed = True
            print(f"{what}: failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    # ---- clocks ---------------------------------------------------------------------------

    def calibrate(self) -> None:
        """Measure the clock of the GPU, and how fast it copies."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):  # the first ones wake the device
            begin.record()
            torch.cuda._sleep(20_000_000)
            end.record()
            torch.cuda.synchronize()
            self.cycles_per_ms = 20_000_000 / begin.elapsed_time(end)
        target = torch.empty_like(self.cold)
        copies = self.device_us(lambda: target.copy_(self.cold), 20, 10)
        self.copied_bytes_per_us = 2 * COLD / statistics.median(copies)

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def host_us(self, call: Callable[[], object], calls: int) -> float:
        """Return the host's microseconds of one call, with an empty queue before each."""
        times = []
        for _ in range(calls):
            self.wait()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        self.wait()
        return 1e6 * statistics.median(times)

    def hot_host_us(self, call: Callable[[], object], calls: int) -> float:
        """Return the host's microseconds of one call of several without a pause."""
        for _ in range(3):
            call()
        self.wait()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        spent = time.perf_counter() - begin
        self.wait()
        return 1e6 * spent / calls

    def device_us(self, call: Callable[[], object], calls: int, host_us: float) -> list[float]:
        """Return the device's microseconds of each of some calls; NaN without a GPU.

        Args:
            host_us: the host's time of a call; the queue is held for twice that.
        """
        if not self.on_gpu:
            return [float("nan")]
        times = []
        for _ in range(calls):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.cold.zero_()  # empties the caches
            torch.cuda._sleep(int(self.cycles_per_ms * (2 * host_us / 1000 + 0.3)))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * begin.elapsed_time(end))
        return times

    def kernels_of(self, call: Callable[[], object]) -> list[tuple[str, float]]:
        """Return the name and the microseconds of each kernel of one call; none without a GPU."""
        if not self.on_gpu:
            return []
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        events = (each for each in found.events() if each.device_type.name == "CUDA")
        return [(each.name, float(each.device_time_total)) for each in events]


# ---- layers ---------------------------------------------------------------------------------


class Positions(torch.nn.BatchNorm1d):
    """torch's batch normalization over the positions of (T, B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (T, B, C)."""
        return super().forward(x.reshape(-1, x.size(-1))).view(x.shape)


Layer = Callable[[Tensor], Tensor]


def library_layer(name: str, data: Data) -> Layer | None:
    """Return a layer of a library by its name; None if it is not installed."""
    module, _, kind = name.rpartition(".")
    try:
        made = (
            Positions if kind == "BatchNorm1d" else getattr(importlib.import_module(module), kind)
        )
    except ImportError:
        return None
    layer: Layer = made(data.x.size(-1)).to(data.x.device, data.x.dtype)
    return layer


def own_layer(setup: Setup, form: str, data: Data) -> Layer | None:
    """Return a norm in one of :data:`FORMS`; None if it has no such form."""
    norm = setup.build(data.x.size(-1)).train().to(data.x.device, data.x.dtype)
    set_kernels(norm, FORMS[form])
    if isinstance(norm, BatchStatisticsNorm):
        norm.set_num_updates(1)  # as a trainer does
    if form != "plain" and norm.fused is None:
        return None
    return partial(norm, padding_mask=data.mask)


def measure_layer(window: Window, setup: Setup, provider: str, data: Data) -> Record:
    """Return the times of a forward and backward pass; empty if there is no such layer."""
    library = provider == LIBRARY
    layer = library_layer(setup.norm, data) if library else own_layer(setup, provider, data)
    if layer is None:
        return {}
    call = partial(train, layer, data)
    calls = 2 if window.args.quick else 12
    for _ in range(4):
        call()
    host, hot = window.host_us(call, calls), window.hot_host_us(call, calls)
    device = quartiles(window.device_us(call, calls, max(host, hot)))
    kernels = window.kernels_of(call)
    copied = MOVED * data.x.nbytes / window.copied_bytes_per_us
    return {
        "host_us": round(host, 1),
        "hot_host_us": round(hot, 1),
        **device.rounded(1, "device_us_{}"),
        "kernels": len(kernels),
        "kernels_us": round(sum(us for _, us in kernels), 1),
        "copy_share": round(copied / device.p50, 3),
    }


def measure_layers(window: Window) -> None:
    """Measure every norm, and the layers of libraries, at each size and dtype."""
    half = window.left / 2
    for (rows, channels), dtype in ((s, d) for s in window.args.sizes for d in DTYPES):
        torch.manual_seed(1)
        data = make_data(rows, channels, dtype, window.args.device)
        place = {"dtype": str(dtype)[6:], "rows": rows, "channels": channels}
        unit: Record = {}
        cases: list[tuple[Setup, str]] = [(Setup(name), LIBRARY) for name in LIBRARIES]
        cases += [(setup, form) for setup in window.args.setups for form in FORMS]
        for setup, provider in cases:
            what = {**setup._asdict(), "provider": provider, **place}
            enough = window.left > (half if provider in ("compile", "plain") else 0)
            if not enough or (unit and window.has("layers", **what)):
                continue
            torch._dynamo.reset()  # it keeps few graphs per function, and then runs without them
            with window.attempt(what):
                row = measure_layer(window, setup, provider, data)
                unit = unit or row  # torch.nn.LayerNorm comes first, also when the file has it
                if row and not window.has("layers", **what):
                    ratios = {
                        f"{name}_ratio": round(row[column] / unit[column], 3)
                        for name, column in (("host", "hot_host_us"), ("device", "device_us_p50"))
                    }
                    window.write("layers", {**what, **row, **ratios})


# ---- updates --------------------------------------------------------------------------------


def training_options(window: Window, optimizer: str) -> argparse.Namespace:
    """Return the options of :class:`training.Run`."""
    args = window.args
    small = ["size=smoke", "dataset.max_tokens=256"] if args.quick else []
    return argparse.Namespace(
        data=args.data,
        recipe="iwslt14_de_en",
        device=args.device,
        overrides=[f"optimizer._name={optimizer}", *small],
    )


def timed_update(window: Window, run: Run, batch: Any) -> tuple[float, float]:
    """Return the milliseconds until an update is queued, and until it is done."""
    window.wait()
    begin = time.perf_counter()
    with metrics.aggregate(new_root=True):
        run.trainer.train_step([batch])
    queued = time.perf_counter() - begin
    window.wait()
    return 1000 * queued, 1000 * (time.perf_counter() - begin)


def allocated_mib(window: Window, peak: bool = False) -> float:
    """Return the memory that torch has allocated on the GPU, or its peak; NaN without a GPU."""
    if not window.on_gpu:
        return float("nan")
    bytes_ = torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    return float(bytes_ / MEBI)


def measure_pair(
    window: Window, stock: Run, setup: Setup, optimizer: str, batches: Sequence[Any]
) -> Record:
    """Return the row of a norm: updates in turn with stock fairseq's on the same batches."""
    gc.collect()  # the model before, whose trainer refers to itself
    others = allocated_mib(window)
    run = Run(setup, AUTO, training_options(window, optimizer))
    times: list[tuple[tuple[float, float], tuple[float, float]]] = [
        (timed_update(window, stock, batch), timed_update(window, run, batch)) for batch in batches
    ]
    pairs = times[min(WARMUP, len(times) // 2) :]
    ratios = [theirs / ours for (_, theirs), (_, ours) in pairs]
    if window.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    kernels = window.kernels_of(lambda: timed_update(window, run, batches[-1]))
    return {
        "updates": len(pairs),
        "stock_ms": round(quartiles([theirs for (_, theirs), _ in pairs]).p50, 2),
        "ms": round(quartiles([ours for _, (_, ours) in pairs]).p50, 2),
        "stock_host_ms": round(quartiles([queued for (queued, _), _ in pairs]).p50, 2),
        "host_ms": round(quartiles([queued for _, (queued, _) in pairs]).p50, 2),
        **quartiles(ratios).rounded(4, "ratio_{}"),
        "kernels": len(kernels),
        "busy_ms": round(sum(us for _, us in kernels) / 1000, 2),
        "peak_mib": round(allocated_mib(window, peak=True) - others, 1),
    }


def measure_updates(window: Window) -> None:
    """Compare updates of every norm with stock fairseq's, and first stock's two optimizers."""
    same = [STOCK, *window.args.setups]
    cases = [(STOCK, FOREACH, ADAM), *((setup, FOREACH, FOREACH) for setup in same)]
    cases += [(setup, ADAM, ADAM) for setup in window.args.setups[:2]]
    stock: dict[str, Run] = {}
    for setup, optimizer, of_stock in cases:
        what = {**setup._asdict(), "optimizer": optimizer, "stock_optimizer": of_stock}
        if window.left < window.args.reserve or window.has("updates", **what):
            continue
        if of_stock not in stock:
            stock.clear()
            stock[of_stock] = Run(STOCK, AUTO, training_options(window, of_stock))
        batches = stock[of_stock].batches(4 if window.args.quick else PAIRS + WARMUP)
        with window.attempt(what):
            row = measure_pair(window, stock[of_stock], setup, optimizer, batches)
            window.write("updates", {**what, **row})


PARTS: Mapping[str, Callable[[Window], None]] = {
    "layers": measure_layers,
    "updates": measure_updates,
}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = plain_parser(__doc__)
    add = parser.add_argument
    add("--device", choices=FUSED, default=CUDA, help="default: %(default)s")
    add("--quick", action="store_true", help="try the command with tiny sizes")
    add("--data", type=Path, metavar="DIR", help="binarized data (default: Multi30k)")
    add("--minutes", type=float, default=8, metavar="N", help="default: %(default)s")
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of the files")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="P", help="default: all")
    args = parser.parse_args(argv)
    if args.device == CUDA and not torch.cuda.is_available():
        raise CommandError("torch finds no CUDA device; give --device cpu")
    if args.output == RESULTS and (args.quick or args.device == CPU):
        raise CommandError("give --output: this is no measurement of a GPU")
    args.sizes = [(64, 32)] if args.quick else SIZES
    args.setups = list(FIRST[:2]) if args.quick else all_setups()
    args.reserve = 0 if args.quick else 40  # seconds that a training model needs
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a measurement failed, which does not stop the others."""
    args = parse_args(argv)
    prepare_process(1, FUSED[args.device])  # the host only launches
    args.data = args.data or prepared_multi30k()
    window = Window(args)
    if window.on_gpu:
        window.calibrate()
    for part in args.parts:
        begin = time.monotonic()
        with window.attempt(part):
            PARTS[part](window)
        print(f"== {part}: {time.monotonic() - begin:.0f} s, {window.left:.0f} s left", flush=True)
    return int(window.failed)


if __name__ == "__main__":
    run_command(main)
