"""The processes of runs on this machine: how many at a time, and with which cores and GPUs.

Each run is ``norm-plugin job FOLDER``, which reads ``run.json`` in the folder of the run.
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
from norm_lab.engine.execution import write_run
from norm_lab.engine.process import DIE_WITH_PARENT
from norm_lab.paths import PYTHON, ROOT
from norm_plugin.io.command_line import CommandError

MEMORY_OF_RUN = 2 * 2**30  # bytes: more than that of a small model's training


def write_runs(specs: Sequence[RunSpec]) -> Iterator[RunSpec]:
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


def run_locally(request: Request, specs: Sequence[RunSpec], count: int) -> None:
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
        list(pool.map(run, write_runs(specs)))


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
