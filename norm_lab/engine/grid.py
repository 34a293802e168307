"""A grid of runs, several in parallel, and its state; it can be stopped and restarted at any time.

Each run is ``norm-plugin job FOLDER``, which reads ``run.json`` in the folder of the run: a process
on this machine, or a Slurm job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Event, Thread

from norm_lab.config.options import LOCAL, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import print_commands, write_run
from norm_lab.engine.process import DIE_WITH_PARENT
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
from norm_lab.paths import PYTHON, ROOT
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json

ORDER = (DONE, RUNNING, WAITING, STOPPED, FAILED, DIVERGED)
POLL_SECONDS = 5.0
MEMORY_OF_RUN = 2 * 2**30  # bytes: more than that of a small model's training
SHOWN = 3  # runs that an outline names
NOT_CHECKED = (
    "Values of settings, and keys after a +, are not checked here, but before the first run, or by "
    "--verbose, which also prints the commands."
)


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
    skipped = _skipped(request)
    left = [number for number, spec in enumerate(specs) if state_of(spec).state not in skipped]
    if left:
        if request.launcher == LOCAL:
            threads = count_threads(request, jobs)
            print(f"--jobs {jobs} --threads {threads}: runs at a time, threads of each", flush=True)
        with show_progress(specs, jobs, left):
            if request.launcher == LOCAL:
                run_here(request, [specs[number] for number in left], jobs)
            else:
                from norm_lab.engine.slurm import run_by_slurm

                run_by_slurm(request, [specs[number] for number in left])
    print(overview(specs, jobs))
    return int(any(state_of(spec).state not in (DONE, DIVERGED) for spec in specs))


def outline(request: Request, specs: Sequence[RunSpec]) -> str:
    """Return in a few lines what a command would do."""
    left = sum(state_of(spec).state not in _skipped(request) for spec in specs)
    names = [f"  {spec.label}{spec.folded_suffix}, seed {spec.seed}" for spec in specs]
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


def _skipped(request: Request) -> tuple[str, ...]:
    return (DONE,) if request.retry else (DONE, DIVERGED)


def written(specs: Sequence[RunSpec]) -> Iterator[RunSpec]:
    """Write ``run.json`` of each run; yield the runs, but for those whose folder is in use."""
    for spec in specs:
        try:
            write_run(spec)
        except CommandError as error:
            print(f"{spec.name}: {error}", file=sys.stderr)
        else:
            yield spec


def start_job(
    folder: Path, environment: Mapping[str, str], retry: bool = False
) -> subprocess.Popen[bytes]:
    """Start the run in a folder, with what it prints in ``logs/job.log``.

    It ends when this process ends.
    """
    log = folder / "logs" / "job.log"
    log.parent.mkdir(exist_ok=True)
    command = [*DIE_WITH_PARENT, *PYTHON, "-m", "norm_plugin", "job", str(folder)]
    with open(log, "ab") as stream:
        return subprocess.Popen(
            [*command, "--retry"] if retry else command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def count_jobs(request: Request, specs: Sequence[RunSpec]) -> int:
    """Return the number of parallel runs: ``--jobs``, or one per GPU.

    Experiments for the CPU have small models, whose threads wait for each other: one run per core,
    if the memory suffices.
    """
    if request.launcher != LOCAL:
        return len(specs)
    if request.jobs or not all(spec.on_cpu for spec in specs):
        return request.jobs or max(len(gpus_of(specs)), 1)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(len(specs), len(os.sched_getaffinity(0)), max(memory // MEMORY_OF_RUN, 1))


def count_threads(request: Request, jobs: int) -> int:
    """Return the threads of each run: ``--threads``, or its share of the cores."""
    return request.threads or max(len(os.sched_getaffinity(0)) // jobs, 1)


def gpus_of(specs: Sequence[RunSpec]) -> list[str]:
    """Return the GPUs to distribute, as ``CUDA_VISIBLE_DEVICES`` names them; none on the CPU."""
    if all(spec.on_cpu for spec in specs):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named and count else list(map(str, range(count)))


def run_here(request: Request, specs: Sequence[RunSpec], count: int) -> None:
    """Execute runs, ``count`` in parallel; a failure does not stop the others.

    A place is what a running run holds: a share of the cores and a GPU. If there are fewer GPUs
    than parallel runs, several runs share one. A run whose folder is in use is not started.
    """
    threads = str(count_threads(request, count))
    places: SimpleQueue[dict[str, str]] = SimpleQueue()
    gpus = gpus_of(specs)
    for number in range(count):
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        places.put({"OMP_NUM_THREADS": threads, **gpu})

    def run(spec: RunSpec) -> None:
        place = places.get()
        try:
            start_job(spec.folder, place, request.retry).wait()
        finally:
            places.put(place)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, written(specs)))


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
    lines = [
        f"{name:<{width}}  {_line(state)}{_score(spec) if state.state == DONE else ''}"
        for name, state, spec in zip(names, states, specs)
    ]
    return "\n".join([f"{specs[0].experiment}", *lines, summary(states, jobs)])


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
    """Return an estimate for the whole grid; None if it is unknown or all runs have ended."""
    ahead = sum(status.state in (WAITING, STOPPED) for status in states)
    running = [status for status in states if status.state == RUNNING]
    if not ahead and not running:
        return None
    took = [status.seconds for status in states if status.state == DONE and status.seconds > 0]
    known = [status.left for status in running if status.left is not None]
    if not took and (ahead or not known):
        return None
    usual = sum(took) / len(took) if took else max(known)
    known += [max(usual - each.seconds, 0.0) for each in running if each.left is None]
    return (sum(known) + ahead * usual) / max(min(jobs, ahead + len(running)), 1)
