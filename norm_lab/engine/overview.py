"""What is printed of a grid: what a command would do, and the state of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from norm_lab.config.options import Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.jobs import count_jobs
from norm_lab.engine.progress import duration
from norm_lab.engine.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    STATUS_FILE,
    STOPPED,
    WAITING,
    Status,
    read_status,
    state_of,
)
from norm_lab.metrics import find_metric
from norm_plugin.io.files import read_json

ORDER = (DONE, RUNNING, WAITING, STOPPED, FAILED, DIVERGED)
SHOWN = 3  # runs that an outline names
NOT_CHECKED = (
    "Values of settings, and keys after a +, are not checked here, but before the first run, or by "
    "--verbose, which also prints the commands."
)


def outline(request: Request, specs: Sequence[RunSpec]) -> str:
    """Return in a few lines what a command would do."""
    left = sum(state_of(spec).state not in skipped_states(request) for spec in specs)
    names = [f"  {spec.evaluated_label}, seed {spec.seed}" for spec in specs]
    more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    lines = [
        f"{specs[0].experiment}: {len(specs)} run{'s' if len(specs) > 1 else ''}, {left} to do; "
        f"{estimate(specs[0], left, jobs_of_outline(request, specs))}",
        f"results: {specs[0].result.parent}",
        *(names[:SHOWN] + more),
        NOT_CHECKED,
    ]
    return "\n".join(lines)


def estimate(spec: RunSpec, left: int, jobs: int) -> str:
    """Return how long ``left`` runs take, by the finished ones in the folder of a run like them."""
    folder = spec.folder.parent
    statuses = [read_status(path.parent) for path in folder.glob(f"*/{STATUS_FILE}")]
    took = [each.seconds for each in statuses if each.state == DONE and each.seconds > 0]
    if not took:
        return "how long is not known before the first has ended"
    at_once = max(min(jobs, left), 1)
    return f"about {duration(median(took) * left / at_once)}, {at_once} at a time"


def jobs_of_outline(request: Request, specs: Sequence[RunSpec]) -> int:
    """Return the number of parallel runs, or 1 if it depends on the GPUs of another machine."""
    on_cpu = all(spec.on_cpu for spec in specs)
    return count_jobs(request, specs) if on_cpu else request.jobs or 1


def skipped_states(request: Request) -> tuple[str, ...]:
    """Return the states of runs that a command leaves as they are."""
    return (DONE,) if request.retry else (DONE, DIVERGED)


def overview(specs: Sequence[RunSpec], jobs: int) -> str:
    """Return the status of each run, one per line, and the summary."""
    states = [state_of(spec) for spec in specs]
    lines = lines_of_runs(specs, states)
    return "\n".join([f"{specs[0].experiment}", *lines, summary(states, jobs)])


def running_lines(specs: Sequence[RunSpec], states: Sequence[Status]) -> list[str]:
    """Return a line for each run that is running: its stage, how far it is, and the time left."""
    running = [pair for pair in zip(specs, states) if pair[1].state == RUNNING]
    return lines_of_runs(*zip(*running)) if running else []


def lines_of_runs(specs: Sequence[RunSpec], states: Sequence[Status]) -> list[str]:
    """Return the name and the status of each run, and the score of a finished one."""
    names = [f"{spec.evaluated_label}, seed {spec.seed}" for spec in specs]
    width = max(map(len, names))
    return [
        f"{name:<{width}}  {_line(state)}{_score(spec) if state.state == DONE else ''}"
        for name, state, spec in zip(names, states, specs)
    ]


def _score(spec: RunSpec) -> str:
    """Return the headline score of a finished run, with two spaces before it."""
    metric = find_metric(spec.metric)
    score = read_json(spec.result)["scores"][metric.headline]["score"]
    return f"  {metric.text(score)} {metric.title}"


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
    """Return an estimate for the whole grid; None if it is unknown or all runs have ended.

    A resumed run needs what remains of the mean time of the finished runs.
    """
    unfinished = [status for status in states if status.state in (RUNNING, WAITING, STOPPED)]
    took = [status.seconds for status in states if status.state == DONE and status.seconds > 0]
    if not unfinished or (not took and any(status.left is None for status in unfinished)):
        return None
    usual = sum(took) / len(took) if took else 0.0
    left = [
        max(usual - status.seconds, 0.0) if status.left is None else status.left
        for status in unfinished
    ]
    return max(sum(left) / max(min(jobs, len(left)), 1), *left)
