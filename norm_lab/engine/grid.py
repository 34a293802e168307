"""A grid of runs, several in parallel; it can be stopped and restarted at any time.

A run is a process on this machine, or a Slurm job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import Event, Thread

from rich.live import Live
from rich.text import Text

from norm_lab.config.options import LOCAL, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import print_commands
from norm_lab.engine.jobs import count_jobs, count_threads, run_locally
from norm_lab.engine.overview import (
    jobs_of_outline,
    outline,
    overview,
    running_lines,
    skipped_states,
    summary,
)
from norm_lab.engine.slurm import run_by_slurm
from norm_lab.engine.state import DIVERGED, DONE, FAILED, WAITING, Status, state_of

POLL_SECONDS = 5.0
LINE_SECONDS = 600.0


def run_grid(request: Request, specs: Sequence[RunSpec]) -> int:
    """Run the unfinished runs of a grid; return 0 if all are done or diverged, else 1."""
    if request.dry_run and not request.verbose:
        print(outline(request, specs))
        return 0
    if request.status:
        print(overview(specs, jobs_of_outline(request, specs)))
        return 0
    if request.dry_run:
        for spec in specs:
            print_commands(spec)
        return 0
    jobs = count_jobs(request, specs)
    skipped = skipped_states(request)
    left = [number for number, spec in enumerate(specs) if state_of(spec).state not in skipped]
    if left:
        if request.launcher == LOCAL:
            threads = count_threads(request, jobs)
            print(f"--jobs {jobs} --threads {threads}: runs at a time, threads of each", flush=True)
        with show_progress(specs, jobs, left):
            if request.launcher == LOCAL:
                run_locally(request, [specs[number] for number in left], jobs)
            else:
                run_by_slurm(request, [specs[number] for number in left])
    print(overview(specs, jobs))
    return int(any(state_of(spec).state not in (DONE, DIVERGED) for spec in specs))


@contextmanager
def show_progress(specs: Sequence[RunSpec], jobs: int, left: Collection[int]) -> Iterator[None]:
    """Show the progress of a grid until the context ends.

    A terminal shows a line per running run above the summary of all runs. A file gets the summary
    whenever the state of a run changes, and without a change all lines every :data:`LINE_SECONDS`.

    Args:
        left: the indices of the runs that this sweep executes.
    """
    ended, began = Event(), time.time()
    screen = Live(auto_refresh=False, transient=True) if sys.stdout.isatty() else None

    def show() -> None:
        before: tuple[str, ...] = ()
        printed = time.monotonic()
        while not ended.wait(POLL_SECONDS):
            states = [
                state_since(began, spec) if number in left else state_of(spec)
                for number, spec in enumerate(specs)
            ]
            now = tuple(state.state for state in states)
            lines = [*running_lines(specs, states), summary(states, jobs)]
            if screen is not None:
                screen.update(Text("\n".join(lines)), refresh=True)
            elif now != before or time.monotonic() - printed > LINE_SECONDS:
                printed = time.monotonic()
                with suppress(BrokenPipeError):  # a reader that has left, such as head
                    print(*(lines if now == before else lines[-1:]), sep="\n", flush=True)
            before = now

    thread = Thread(target=show, daemon=True)
    with screen or nullcontext():
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def state_since(began: float, spec: RunSpec) -> Status:
    """Return the status of a run; waiting if it failed or diverged before ``began``."""
    status = state_of(spec)
    again = status.state in (FAILED, DIVERGED) and status.updated < began
    return Status(WAITING, seconds=status.seconds) if again else status
