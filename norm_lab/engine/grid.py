"""A grid of runs, several in parallel; it can be stopped and restarted at any time.

Each run is ``norm-plugin job FOLDER``, which reads ``run.json`` in the folder of the run: a process
on this machine, or a Slurm job.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from norm_lab.config.options import LOCAL, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import print_commands, write_run
from norm_lab.engine.overview import overview, show_progress
from norm_lab.engine.process import DIE_WITH_PARENT
from norm_lab.engine.state import DIVERGED, DONE, state_of
from norm_lab.paths import PYTHON, ROOT
from norm_plugin.io.command_line import CommandError


def run_grid(request: Request, specs: Sequence[RunSpec]) -> int:
    """Run the unfinished runs of a grid; return 0 if all are done or diverged, else 1."""
    jobs = count_jobs(request, specs)
    if request.status:
        print(overview(specs, jobs))
        return 0
    if request.dry_run:
        for spec in specs:
            print_commands(spec)
        return 0
    skipped = (DONE,) if request.retry else (DONE, DIVERGED)
    left = [number for number, spec in enumerate(specs) if state_of(spec).state not in skipped]
    if left:
        with show_progress(specs, jobs, left):
            if request.launcher == LOCAL:
                run_here(request, [specs[number] for number in left], jobs)
            else:
                from norm_lab.engine.slurm import run_by_slurm

                run_by_slurm(request, [specs[number] for number in left])
    print(overview(specs, jobs))
    return int(any(state_of(spec).state not in (DONE, DIVERGED) for spec in specs))


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
    """Return the number of parallel runs: ``--jobs``, or one per GPU, or one."""
    if request.launcher != LOCAL:
        return len(specs)
    return request.jobs or max(len(gpus_of(specs)), 1)


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
    threads = str(request.threads or max(len(os.sched_getaffinity(0)) // count, 1))
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
