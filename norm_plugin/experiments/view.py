"""The state of all runs of a sweep in one view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from norm_plugin.experiments.progress import duration
from norm_plugin.experiments.runner import diverged, is_finished
from norm_plugin.experiments.spec import RunSpec
from norm_plugin.experiments.status import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Status,
    read_status,
)

ORDER = (DONE, RUNNING, WAITING, STOPPED, FAILED, DIVERGED)


def state_of(spec: RunSpec) -> Status:
    """How a run stands, seen from what its folder holds."""
    status = read_status(spec.folder)
    if status.state == RUNNING:
        return status
    if is_finished(spec):
        return Status(DONE, seconds=status.seconds)
    why = diverged(spec)
    if why is not None:
        return Status(DIVERGED, status.stage, text=status.text, reason=why, log=status.log)
    if status.state in (DONE, DIVERGED):  # of other settings or data
        return Status(WAITING)
    return status


def summary(states: Sequence[Status], jobs: int) -> str:
    """One line: ``3 done, 2 running, 19 waiting of 24; about 4 h 10 min left``."""
    counts = Counter(status.state for status in states)
    parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    left = seconds_left(states, jobs)
    end = "" if left is None else f"; about {duration(left)} left"
    return f"{', '.join(parts)} of {len(states)}{end}"


def seconds_left(states: Sequence[Status], jobs: int) -> float | None:
    """An estimate for the whole grid; None before a run has ended, 0 when all have."""
    ahead = sum(status.state in (WAITING, STOPPED) for status in states)
    running = [status for status in states if status.state == RUNNING]
    if not ahead and not running:
        return 0.0
    took = [status.seconds for status in states if status.state == DONE and status.seconds > 0]
    known = [status.left for status in running if status.left is not None]
    if not took and (ahead or not known):
        return None
    usual = sum(took) / len(took) if took else max(known)
    for status in running:
        if status.left is None:
            known.append(max(usual - status.seconds, 0.0))
    return (sum(known) + ahead * usual) / max(min(jobs, ahead + len(running)), 1)


def view(specs: Sequence[RunSpec], jobs: int) -> str:
    """A line for each run, and the summary."""
    states = [state_of(spec) for spec in specs]
    names = [f"{spec.label}{spec.variant}, seed {spec.seed}" for spec in specs]
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
