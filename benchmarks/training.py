#!/usr/bin/env python3
"""Measure what training costs with every norm, compared with fairseq's Transformer with LayerNorm.

    NORM_DATA_DIR=raw python benchmarks/training.py     # about 40 minutes on two cores
    python benchmarks/training.py --norms adanorm --kernels auto off compile --data DIR/bin
    python benchmarks/training.py --recipe multi30k_cpu         # a tiny model

norm_transformer_iwslt_de_en with the norm and transformer_iwslt_de_en, both pre-norm and with all
else from configs/iwslt14_de_en.yaml (or the models of another file), train in one process by
fairseq's own trainer on the same batches, of up to 4,096 tokens of Multi30k: one update of each, in
turn. The ratio is that of two updates on one batch; its quartiles are over the batches. The C
library allocates memory as it does for a user.

Memory is measured in one process per model, in which freed blocks leave the process at once
(mallopt): the peak resident memory during a few updates, minus that before the model was built.
benchmarks/gpu.py measures updates on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from fairseq.trainer import Trainer

from measuring.command import (
    CPU,
    Setup,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    run_benchmark,
)
from measuring.records import Record
from measuring.timing import alternate, memory_mib, quartiles, return_freed_memory
from norm_lab.config.configuration import read_configuration
from norm_lab.run.flags import training_flags
from norm_plugin.checkpoints.fairseq_input import train_batches
from norm_plugin.declarations.flags import option_field
from norm_plugin.io.command_line import CommandError, at_least, run_command
from norm_plugin.kernels import AUTO, KERNELS, set_kernels
from norm_plugin.models.architectures import multi30k_tiny
from norm_plugin.norms import NORM_TYPES

ROOT = Path(__file__).resolve().parents[1]
MERGES = 10_000
PREPARED = ROOT / "work" / "data" / f"multi30k-{MERGES}"
"""The folder that scripts/run_multi30k.sh also uses."""
RECIPES = ("iwslt14_de_en", "multi30k_cpu")
"""A base Transformer and a tiny one."""

TINY = "transformer_multi30k_tiny"
if TINY not in ARCH_MODEL_REGISTRY:  # this file may be imported and then run
    register_model_architecture("transformer", TINY)(multi30k_tiny)
STOCK = Setup("stock")
"""fairseq's own Transformer with LayerNorm."""
WARMUP = 1


def training_argv(setup: Setup, args: argparse.Namespace) -> list[str]:
    """Return the command line of fairseq-train: a recipe with ``setup`` as its norm.

    Args:
        args: ``data``, a folder of binarized data; ``recipe``, of :data:`RECIPES`; ``overrides`` of
            its settings, for both models; ``device``, cpu or cuda.
    """
    norm = "layernorm" if setup == STOCK else setup.norm
    config = read_configuration(args.recipe, [f"norm={norm}", *args.overrides])
    config["common"].update(cpu=args.device == CPU, user_dir=None, log_format="none")
    # the data comes first on the line, and says itself which languages it has
    config["task"].update(data=None, source_lang=None, target_lang=None)
    model = config["model"]
    if setup == STOCK:
        stock = {name: value for name, value in model.items() if not name.startswith("norm_")}
        before = {f"{stack}_normalize_before": True for stack in ("encoder", "decoder")}
        config["model"] = {**stock, "_name": model["_name"].replace("norm_", "", 1), **before}
    else:
        model.update({option_field(name): value for name, value in setup.values().items()})
    return [str(args.data), *training_flags(config)]


class Run:
    """fairseq's trainer of ``setup`` on real batches; nothing is saved.

    Args:
        kernels: a value of ``--norm-kernels``.
        args: as for :func:`training_argv`.

    Raises:
        CommandError: ``args.data`` is not a folder of binarized data.
    """

    def __init__(self, setup: Setup, kernels: str, args: argparse.Namespace) -> None:
        if len(list(args.data.glob("dict.*.txt"))) != 2:
            raise CommandError(f"{args.data} lacks dict.*.txt; give a folder of fairseq-preprocess")
        parser = options.get_training_parser()
        parsed = options.parse_args_and_arch(parser, training_argv(setup, args))
        self.cfg = convert_namespace_to_omegaconf(parsed)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        set_kernels(self.model, kernels)
        criterion = self.task.build_criterion(self.cfg.criterion)
        self.trainer: Any = Trainer(self.cfg, self.task, self.model, criterion)

    def batches(self, number: int) -> list[Any]:
        """Return the first ``number`` batches of the run."""
        return list(itertools.islice(train_batches(self.model, self.cfg, self.task), number))

    def updates(self, batches: Sequence[Any]) -> Callable[[], None]:
        """Return a call that makes one update on the next batch: forward, backward, optimizer."""
        turn = iter(batches)

        def update() -> None:
            with metrics.aggregate(new_root=True):  # otherwise fairseq accumulates all that it logs
                self.trainer.train_step([next(turn)])

        return update


def training_setups() -> list[Setup]:
    """Return every norm with the recipe's options, and powernorm after its warm-up, which a short
    run would not end.
    """
    return [*map(Setup, NORM_TYPES), Setup("powernorm", "warmup_updates=0")]


def prepared(corpus: str, out: Path, *flags: object) -> Path:
    """Return the binarized data of a corpus in the folder ``out``; prepare it if missing."""
    command = [sys.executable, ROOT / "data-prep" / f"{corpus}.py", "--out", out, *flags]
    if subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL).returncode:
        raise CommandError(f"cannot prepare {corpus} (see above); give binarized --data")
    return out / "bin"


def prepared_multi30k() -> Path:
    """Return the binarized data of Multi30k."""
    raw = os.environ.get("NORM_DATA_DIR")
    flags = ["--raw", Path(raw, "multi30k")] if raw else []
    return prepared("multi30k", PREPARED, "--merges", MERGES, *flags)


def measure(
    setup: Setup, kernels: str, stock: Run, stock_peak: float | None, args: argparse.Namespace
) -> Record:
    """Return the row of ``setup``, given stock fairseq's run and its peak memory in MiB."""
    run = Run(setup, kernels, args)
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
    """Return the peak memory in MiB, measured in another process; None without updates for it."""
    if not args.memory_updates:
        return None
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure_peak, setup, kernels, args).result()


def measure_peak(setup: Setup, kernels: str, args: argparse.Namespace) -> float:
    """Return the peak memory in MiB of this process; the other process runs this."""
    prepare_process(args.threads)
    return_freed_memory()
    before = memory_mib("VmRSS")
    run = Run(setup, kernels, args)
    update = run.updates(run.batches(args.memory_updates))
    for _ in range(args.memory_updates):
        update()
    return memory_mib("VmHWM") - before


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "training.csv", training=True)
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
        help="updates during which memory is measured; 0: not at all (default: %(default)s)",
    )
    args = parse_benchmark(parser, argv)
    args.device, args.overrides = CPU, ["size=smoke"] * args.quick
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    args = parse_args(argv)
    prepare_process(args.threads)
    args.data = args.data or prepared_multi30k()
    setups = choose_setups(args.norms, training_setups())
    stock, peak = Run(STOCK, AUTO, args), peak_of(STOCK, AUTO, args)
    measurements = (
        [measure(setup, kernels, stock, peak, args)] for setup in setups for kernels in args.kernels
    )
    run_benchmark(args, measurements)
    return 0


if __name__ == "__main__":
    run_command(main)
