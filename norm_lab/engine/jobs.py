"""The runs of a grid as jobs: processes on this machine, or Slurm jobs.

Each executes ``norm-plugin job FILE``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from norm_lab.config.request import LOCAL, Composed, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.composed import compose
from norm_lab.engine.execution import execute
from norm_lab.engine.process import DIE_WITH_PARENT
from norm_lab.paths import PYTHON, ROOT


@dataclass(frozen=True)
class Job:
    """One run of a grid.

    Attributes:
        request: the request of this run only.
        spec: the run; None: compose it where the job runs.
    """

    request: Request
    spec: RunSpec | None

    def write(self, path: Path) -> None:
        """Write the file for ``norm-plugin job``."""
        spec = None if self.spec is None else self.spec.to_json()
        content = {"request": self.request.to_json(), "spec": spec}
        path.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what :meth:`write` has written."""
        content = json.loads(path.read_text(encoding="utf-8"))
        spec = content["spec"]
        return cls(
            Request.from_json(content["request"]), None if spec is None else RunSpec.from_json(spec)
        )

    def execute(self) -> None:
        """Execute the run; raise as :func:`norm_lab.engine.execution.execute` does."""
        spec = compose(self.request).runs[0] if self.spec is None else self.spec
        execute(spec, os.environ, self.request.retry)


def write_jobs(
    request: Request, composed: Composed, numbers: Sequence[int], *, elsewhere: bool
) -> list[Path]:
    """Write the files of some of the runs of a grid.

    Args:
        elsewhere: a job composes its run on its node, which may have a GPU even if this machine
            has none.
    """
    folder, files = job_folder(request, composed), []
    end = "-elsewhere" if elsewhere else ""  # such a job may still wait when the grid starts here
    for number in numbers:
        of_run = replace(
            request,
            experiment=composed.experiment,
            overrides=composed.overrides[number],
            runs=None,
            grid=False,
            launcher=LOCAL,
        )
        files.append(folder / f"{number}{end}.json")
        Job(of_run, None if elsewhere else composed.runs[number]).write(files[-1])
    return files


def job_folder(request: Request, composed: Composed) -> Path:
    """Return the folder of the files of jobs, one per grid, since older jobs may still wait."""
    text = json.dumps([spec.to_json() for spec in composed.runs])
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = composed.runs[0].work / "sweeps" / Path(request.experiment).stem / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_job(job: Path, environment: Mapping[str, str]) -> int:
    """Execute a job, with a log next to its file; it ends when this process ends."""
    with open(job.with_suffix(".log"), "a", encoding="utf-8") as log:
        return subprocess.run(
            [*DIE_WITH_PARENT, *PYTHON, "-m", "norm_plugin", "job", str(job)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


# On this machine


def count_jobs(request: Request, composed: Composed) -> int:
    """Return the number of parallel runs: ``--jobs``, or one per GPU, or one."""
    if request.launcher != LOCAL:
        return len(composed.runs)
    return request.jobs or max(len(gpus_of(composed)), 1)


def gpus_of(composed: Composed) -> Sequence[str]:
    """Return the GPUs to distribute; none if all runs are on the CPU."""
    on_gpus = not all(spec.on_cpu for spec in composed.runs)
    return composed.gpus if on_gpus else ()


def run_here(request: Request, composed: Composed, numbers: Sequence[int], count: int) -> None:
    """Execute some of the runs, ``count`` in parallel; a failure does not stop the others.

    If there are fewer GPUs than parallel runs, several runs share one.
    """
    threads = str(request.threads or max(len(os.sched_getaffinity(0)) // count, 1))
    places: SimpleQueue[dict[str, str]] = SimpleQueue()
    gpus = gpus_of(composed)
    for number in range(count):
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        places.put({"OMP_NUM_THREADS": threads, **gpu})

    def run(job: Path) -> None:
        place = places.get()
        try:
            run_job(job, place)
        finally:
            places.put(place)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, write_jobs(request, composed, numbers, elsewhere=False)))
