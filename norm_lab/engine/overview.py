"""The state of a grid of runs: one line per run, and a summary with the remaining time."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from norm_lab.config.spec import RunSpec
from norm_lab.engine.progress import duration
from norm_lab.engine.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Status,
    state_of,
)

ORDER = (DONE, RUNNING, WAITING, STOPPED, FAILED, DIVERGED)
POLL_SECONDS = 5.0


@contextmanager
def show_progress(specs: Sequence[RunSpec], jobs: int, left: Collection[int]) -> Iterator[None]:
    """Print the summary of all runs whenever it changes, until the context ends.

    Args:
        left: the indices of the runs that this sweep executes.
    """
    ended, terminal, began = Event(), sys.stdout.isatty(), time.time()

    def show() -> None:
        before: tuple[str, ...] = ()
        while not ended.wait(POLL_SECONDS):
            states = [
                state_since(began, spec) if number in left else state_of(spec)
                for number, spec in enumerate(specs)
            ]
            now = tuple(state.state for state in states)
            if terminal:
                print(f"\r\033[K{summary(states, jobs)}", end="", flush=True)
            elif now != before:
                print(summary(states, jobs), flush=True)
            before = now

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if terminal:
            print()


def state_since(began: float, spec: RunSpec) -> Status:
    """Return the status of a run; waiting if it failed or diverged before ``began``."""
    status = state_of(spec)
    again = status.state in (FAILED, DIVERGED) and status.updated < began
    return Status(WAITING) if again else status


def overview(specs: Sequence[RunSpec], jobs: int) -> str:
    """Return the status of each run, one per line, and the summary."""
    states = [state_of(spec) for spec in specs]
    names = [f"{spec.label}{spec.folded_suffix}, seed {spec.seed}" for spec in specs]
    width = max(map(len, names))
    lines = [f"{name:<{width}}  {_line(state)}" for name, state in zip(names, states)]
    return "\n".join([f"{specs[0].experiment}", *lines, summary(states, jobs)])


def _line(status: Status) -> str:
    if status.state == RUNNING:
        share = "" if status.share is None else f" {100 * status.share:.0f} %"
        left = "" if status.left is None else f", {duration(status.left)} left"
        return f"{status.state}: {status.stage}{share}{left}"
    if status.reason:
        where = f" in {status.stage}" if status.stage else ""
        return f"{status.state}{where}: {status.reason}"
    return status.state


def summary(states: Sequence[Status], jobs: int) -> str:
    """Return one line: ``3 done, 2 running, 19 waiting of 24; about 4 h 10 min left``."""
    counts = Counter(status.state for status in states)
    parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    left = seconds_left(states, jobs)
    end = "" if left is None else f"; about {duration(left)} left"
    return f"{', '.join(parts)} of {len(states)}{end}"


def seconds_left(states: Sequence[Status], jobs: int) -> float | None:
    """Return an estimate for the whole grid; None if unknown, 0 if all runs have ended."""
    ahead = sum(status.state in (WAITING, STOPPED) for status in states)
    running = [status for status in states if status.state == RUNNING]
    if not ahead and not running:
        return 0.0
    took = [status.seconds for status in states if status.state == DONE and status.seconds > 0]
    known = [status.left for status in running if status.left is not None]
    if not took and (ahead or not known):
        return None
    usual = sum(took) / len(took) if took else max(known)
    known += [max(usual - each.seconds, 0.0) for each in running if each.left is None]
    return (sum(known) + ahead * usual) / max(min(jobs, ahead + len(running)), 1)
