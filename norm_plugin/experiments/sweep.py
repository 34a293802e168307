"""A grid of runs, several at once; it can be stopped and started again at any time."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments import processes
from norm_plugin.experiments.done import print_plan
from norm_plugin.experiments.grid import Cell, read_grid
from norm_plugin.experiments.launch import Resources, launch
from norm_plugin.experiments.plan import plan_root
from norm_plugin.experiments.settings import from_here
from norm_plugin.experiments.status import DIVERGED, DONE
from norm_plugin.experiments.view import state_of, summary, view

LOOK = 5.0  # seconds between two looks at the states of the runs


def main(args: argparse.Namespace) -> int:
    """The command ``sweep``; the exit status is 1 unless each run is done or has diverged."""
    cells, further = read_grid(args)
    plans = [cell.plan for cell in cells]
    resources = read_resources(args, cells)
    if args.status:
        print(view(plans, resources.jobs))
        return 0
    if args.dry_run:
        for plan in plans:
            print_plan(plan)
        return 0
    skipped = (DONE,) if args.retry else (DONE, DIVERGED)
    open_cells = [cell for cell in cells if state_of(cell.plan).state not in skipped]
    if open_cells:
        folder = plans[0].settings.work / "sweeps" / Path(args.experiment).stem
        with showing(cells, resources.jobs):
            launch(
                [run_words(cell, args) for cell in open_cells],
                plan_root(),
                folder,
                args.launcher,
                resources,
                further,
            )
    print(view(plans, resources.jobs))
    return int(any(state_of(plan).state not in (DONE, DIVERGED) for plan in plans))


def run_words(cell: Cell, args: argparse.Namespace) -> list[str]:
    """The command line of one run of the grid; folders are absolute in it."""
    words = [*processes.PYTHON, "-m", "norm_plugin"]
    words += ["run", cell.experiment, *cell.overrides]
    for name in ("user_dir", "raw", "pretrained", "work", "results"):
        if getattr(args, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(from_here(getattr(args, name)))]
    for name in ("fold_norms", "smoke", "tensorboard", "retry"):
        words += [f"--{name.replace('_', '-')}"] if getattr(args, name) else []
    return [*words, "--", *args.further]


def read_resources(args: argparse.Namespace, cells: Sequence[Cell]) -> Resources:
    """What each job gets; raises CommandError for more jobs than there are GPUs."""
    if args.launcher != "joblib":
        return Resources(len(cells), args.threads, ())
    on_gpus = any("--cpu" not in cell.plan.training for cell in cells)
    gpus = visible_gpus() if on_gpus else ()
    jobs = args.jobs or max(len(gpus), 1)
    if gpus and jobs > len(gpus):
        raise CommandError(
            f"--jobs {jobs}, but this machine has {len(gpus)} GPUs, and each run needs one"
        )
    cores = len(os.sched_getaffinity(0))
    return Resources(jobs, args.threads or max(cores // jobs, 1), gpus)


def visible_gpus() -> tuple[str, ...]:
    """The GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return tuple(named.split(",")[:count]) if named and count else tuple(map(str, range(count)))


class showing:  # noqa: N801
    """While the runs go on, print the summary of all of them when it changes."""

    def __init__(self, cells: Sequence[Cell], jobs: int) -> None:
        self.cells, self.jobs = cells, jobs
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.show, daemon=True)

    def show(self) -> None:
        """The thread."""
        before: tuple[str, ...] = ()
        terminal = sys.stdout.isatty()
        while not self.ended.wait(LOOK):
            states = [state_of(cell.plan) for cell in self.cells]
            now = tuple(state.state for state in states)
            if terminal:
                print(f"\r\033[K{summary(states, self.jobs)}", end="", flush=True)
            elif now != before:
                print(summary(states, self.jobs), flush=True)
            before = now

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        if sys.stdout.isatty():
            print()
