#!/usr/bin/env python3
"""Measure what --norm-record costs on a CPU: its share of training at EVERY=100, and its file size.

    python benchmarks/recording.py
    python benchmarks/recording.py --norms powernorm batchnorm --check

The hyperparameters are those of IWSLT14 De-En, on the batches of Multi30k unless --data is given,
with every norm recorded. Updates with and without a record are timed in turn.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from measuring.command import (
    Setup,
    benchmark_parser,
    choose_setups,
    parse_benchmark,
    prepare_process,
    run_benchmark,
)
from measuring.records import Record
from measuring.timing import alternate, quartiles
from norm_plugin.io.command_line import run_command
from norm_plugin.kernels import AUTO
from norm_plugin.models.plan import RecordSettings
from norm_plugin.models.recording import Recorder, RecordFile
from training import RECIPES, Run, prepared_data

EVERY = 100
UPDATES = 90_000
"""The number of updates of the training."""
MOST_SHARE = 2.0  # percent of the training time
MOST_MEGABYTES = 50.0
WARMUP = 2
DEFAULT = ("layernorm", "batchnorm", "powernorm")


def recorder_of(run: Run, path: Path) -> Recorder:
    """Return a recorder of every norm of ``run`` in every update."""
    plan = replace(run.model.cfg.plan, record=RecordSettings(1, file=str(path)))
    return Recorder(run.model, plan, RecordFile(path, {}))


def with_recorder(
    run: Run, recorder: Recorder | None, update: Callable[[], None]
) -> Callable[[], None]:
    """Return ``update`` of ``run`` with this recorder in its trainer."""

    def timed() -> None:
        run.trainer.norm_recorder = recorder
        update()

    return timed


def measure(setup: Setup, args: argparse.Namespace) -> Record:
    """Return the row of ``setup``."""
    run = Run(setup, AUTO, args)
    path = Path(tempfile.mkdtemp()) / "record"
    recorder = recorder_of(run, path)
    batches = run.batches(WARMUP + args.updates)
    calls = {
        "plain": with_recorder(run, None, run.updates(batches)),
        "recorded": with_recorder(run, recorder, run.updates(batches)),
    }
    times = alternate(calls, args.updates, WARMUP)
    added = [slow - fast for slow, fast in zip(times["recorded"], times["plain"])]
    plain, more = quartiles(times["plain"]), quartiles(added)
    record_bytes = path.stat().st_size / (WARMUP + args.updates)
    shutil.rmtree(path.parent)
    return {
        **setup._asdict(),
        "tokens": run.cfg.dataset.max_tokens,
        "updates": args.updates,
        "plain_p50_ms": round(plain.p50, 1),
        **more.rounded(1, "added_{}_ms"),
        "share_percent": round(100 * more.p50 / (EVERY * plain.p50), 4),
        "megabytes": round(record_bytes * UPDATES / EVERY / 1e6, 2),
    }


def misses(rows: Sequence[Record]) -> Iterator[str]:
    """Yield a line for each missed target."""
    for row in rows:
        name = Setup(row["norm"], row["options"])
        if row["share_percent"] > MOST_SHARE:
            yield f"{name}: {row['share_percent']:.2f} % of the time, {MOST_SHARE} is allowed"
        if row["megabytes"] > MOST_MEGABYTES:
            yield f"{name}: {row['megabytes']:.0f} MB, {MOST_MEGABYTES:.0f} are allowed"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``argv`` is sys.argv[1:]."""
    parser = benchmark_parser(__doc__, "recording.csv", "targets", "training")
    parser.set_defaults(norms=list(DEFAULT), recipe=RECIPES[0], overrides=[], device="cpu")
    return parse_benchmark(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; with --check, return 1 if a target is missed."""
    args = parse_args(argv)
    prepare_process(args.threads)
    args.data = args.data or prepared_data()
    setups = choose_setups(args.norms, [Setup(name) for name in DEFAULT])
    return run_benchmark(args, ([measure(setup, args)] for setup in setups), misses)


if __name__ == "__main__":
    run_command(main)
