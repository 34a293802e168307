#!/usr/bin/env python3
"""Measure what the host does for a norm on a GPU, compared with fairseq, on any machine.

    python benchmarks/host.py                              # every norm; about 15 minutes
    python benchmarks/host.py --norms powernorm:warmup_updates=0 --updates 250
    python benchmarks/host.py --optimizer adam_foreach     # for both models

On a GPU, training of the models of the papers is limited by the host, which launches the kernels.
Here kernels are launched on a GPU that computes nothing (``measuring/fake_gpu.py``), and dimensions
are so small that the time of a call is that of its host work. Each row has

- launches of one layer with padding, forward and backward, of Triton and of torch, and of an update
- host_ratio: the CPU time of the layer, as a ratio to torch.nn.LayerNorm's in turn
- ratio_p25 to ratio_p75: quartiles of stock fairseq's CPU time per update over that of the norm on
  the same batch, in turn: 1 is stock's updates/s. Both have the same optimizer, and the base
  Transformer of configs/iwslt14_de_en.yaml with 32 channels and batches of 60 tokens.

Times vary with what else the machine does, ratios little; their quartiles say how much. Launches
are exact.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from measuring.command import (
    CPU,
    Setup,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    quiet,
    run_benchmark,
)
from measuring.fake_gpu import install
from measuring.launches import CountLaunches
from measuring.records import Record
from measuring.timing import alternate, quartiles
from norm_plugin.io.command_line import run_command
from norm_plugin.kernels import AUTO
from norm_plugin.norms import NORM_TYPES
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from training import ROOT, STOCK, Run, prepared

CHANNELS, LENGTHS = 1024, (4, 3, 2, 4)
DIM, TOKENS = 32, 64
SMALL = [
    *(
        f"++model.{side}_{part}={DIM}"
        for side in ("encoder", "decoder")
        for part in ("embed_dim", "ffn_embed_dim")
    ),
    f"dataset.max_tokens={TOKENS}",
]
OPTIMIZERS = ("adam", "adam_foreach")
WARMUP = 5
TOY = ROOT / "work" / "data" / "toy-400"  # beside the corpus of `norm-plugin run toy`
TOY_SIZES = ("--train", 400, "--valid", 40, "--test", 40, "--workers", 1)


def host_setups() -> list[Setup]:
    """Return every norm, and powernorm after its warm-up, which a short run would not end."""
    after = [Setup("powernorm", "warmup_updates=0")]
    released = [Setup("powernorm", "variant=released warmup_updates=0")]
    return [Setup(name) for name in NORM_TYPES] + after + released


def cpu_ms(call: Callable[[], object]) -> float:
    """Return the milliseconds of CPU time of one call."""
    start = time.process_time()
    call()
    return 1000 * (time.process_time() - start)


# ---- layers ---------------------------------------------------------------------------------


def measure_layer(setup: Setup, repetitions: int) -> Record:
    """Return the launches of a layer in training, and its host time, of torch.nn.LayerNorm's."""
    torch.manual_seed(1)
    x = torch.randn(max(LENGTHS), len(LENGTHS), CHANNELS, requires_grad=True)
    dy = torch.randn_like(x)
    mask = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS).unsqueeze(1)
    norm = setup.build(CHANNELS)
    if isinstance(norm, BatchStatisticsNorm):
        norm.set_num_updates(1)  # as a trainer does; otherwise a launch counts each forward
    layer = partial(norm, padding_mask=mask)

    def step(layer: Callable[[Tensor], Tensor]) -> None:
        x.grad = None
        layer(x).backward(dy)

    step(layer)  # compiles the kernels
    norm.zero_grad()
    x.grad = None
    with CountLaunches() as forward:
        y = layer(x)
    with CountLaunches() as backward:
        y.backward(dy)
    calls = {"torch": partial(step, torch.nn.LayerNorm(CHANNELS)), "norm": partial(step, layer)}
    times = alternate(calls, repetitions, WARMUP, cpu_ms)
    return {
        "forward_triton": forward.triton.total(),
        "forward_torch": forward.torch.total(),
        "backward_triton": backward.triton.total(),
        "backward_torch": backward.torch.total(),
        "launches": forward.total + backward.total,
        "synchronizing": forward.synchronizing + backward.synchronizing,
        "host_ratio": round(quartiles(times["norm"]).p50 / quartiles(times["torch"]).p50, 3),
    }


# ---- updates --------------------------------------------------------------------------------


class HostRun(Run):
    """A run whose numbers mean nothing, since kernels compute nothing."""

    def __init__(self, setup: Setup, args: argparse.Namespace) -> None:
        super().__init__(setup, AUTO, args)
        for parameter in self.model.parameters():
            # What kernels have not written may be anything, and a CPU takes up to 20 times as long
            # for its root as for that of a number. So all values are NaN, in stock's model, too.
            parameter.data.fill_(math.nan)
        clip: Callable[[float], Tensor] = self.trainer.clip_grad_norm

        def finite_norm(max_norm: float) -> Tensor:
            """Make the norm of the gradients, and return another one, so that fairseq goes on."""
            clip(max_norm)
            return torch.ones(())

        self.trainer.clip_grad_norm = finite_norm

    def count(self, batch: Any) -> CountLaunches:
        """Return the launches of an update."""
        update = self.updates([batch] * 3)
        for _ in range(2):
            update()
        with CountLaunches() as launches:
            update()
        return launches


def measure_updates(setup: Setup, stock: HostRun, args: argparse.Namespace) -> Record:
    """Return the CPU time of updates in turn with stock fairseq's, and the launches of one."""
    run = HostRun(setup, args)
    few = stock.batches(WARMUP)
    batches = [few[number % len(few)] for number in range(WARMUP + args.updates)]
    counted = {"stock": stock.count(few[0]), "norm": run.count(few[0])}
    calls = {"stock": stock.updates(batches), "norm": run.updates(batches)}
    times = alternate(calls, args.updates, WARMUP, cpu_ms)
    ratios = [theirs / ours for theirs, ours in zip(times["stock"], times["norm"])]
    return {
        "optimizer": args.optimizer,
        "updates": args.updates,
        "stock_ms": round(quartiles(times["stock"]).p50, 2),
        "ms": round(quartiles(times["norm"]).p50, 2),
        **quartiles(ratios).rounded(3, "ratio_{}"),
        "stock_update_launches": counted["stock"].total,
        "update_launches": counted["norm"].total,
        "update_synchronizing": counted["norm"].synchronizing,
    }


def measure(setup: Setup, stock: HostRun, args: argparse.Namespace) -> list[Record]:
    """Return the row of a norm."""
    layer = measure_layer(setup, 4 * args.updates)
    return [{**setup._asdict(), **layer, **measure_updates(setup, stock, args)}]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "host.csv", training=True)
    parser.set_defaults(threads=1, updates=100)
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help="default: %(default)s"
    )
    args = parse_benchmark(parser, argv)
    args.recipe, args.device = "iwslt14_de_en", CPU
    args.overrides = [*SMALL, f"optimizer._name={args.optimizer}"]
    if args.quick:
        args.updates = 2
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    args = parse_args(argv)
    quiet()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # what kernels have not written may be anything
    install()
    args.data = args.data or prepared("toy", TOY, *TOY_SIZES)
    setups = choose_setups(args.norms, host_setups())
    with mock.patch.object(math, "isfinite", lambda number: True):  # for the NaN check
        stock = HostRun(STOCK, args)
        run_benchmark(args, (measure(each, stock, args) for each in setups))
    return 0


if __name__ == "__main__":
    run_command(main)
