"""A grid of runs, several at once; it can be stopped and started again at any time.

Each run is a process on this machine, or a Slurm job, which submitit starts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from norm_lab.experiments.runner import DIE_WITH_PARENT, execute, exit_reason, print_commands
from norm_lab.experiments.spec import (
    PYTHON,
    ROOT,
    RunSpec,
    as_tuples,
    python_path,
    read_spec,
    write_spec,
)
from norm_lab.experiments.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Status,
    duration,
    state_of,
)
from norm_plugin.io.command_line import CommandError

ORDER = (DONE, RUNNING, WAITING, STOPPED, FAILED, DIVERGED)
POLL_SECONDS = 5.0
DEMO_END = "Look at BLEU: a norm above 80 has learned the toy language. One seed ranks no norm."
LAUNCHER = "hydra.launcher."
SLURM_DEFAULTS = {
    "name": "norm_plugin",
    "nodes": 1,
    "tasks_per_node": 1,
    "timeout_min": 60,
    "slurm_signal_delay_s": 120,  # time before the limit at which a job is told to requeue itself
    "slurm_array_parallelism": 256,
}
GENERIC = {
    *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
    *("tasks_per_node", "stderr_to_stdout", "max_num_timeout"),
}
"""submitit's options for every cluster; the names of the others start with ``slurm_`` there."""


@dataclass(frozen=True)
class Composed:
    """The runs of a command line.

    Attributes:
        runs: the specs.
        overrides: those of each run.
        experiment: the experiment of all runs.
        launcher: overrides of the launcher of jobs, such as ``hydra.launcher.partition=gpu``.
        gpus: the GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them.
    """

    runs: tuple[RunSpec, ...]
    overrides: tuple[tuple[str, ...], ...]
    experiment: str
    launcher: tuple[str, ...]
    gpus: tuple[str, ...]


def read_specs(args: argparse.Namespace) -> Composed:
    """Compose and check the runs of a command line, in a child process.

    Raises CommandError for the first wrong one.
    """
    process = subprocess.run(
        [*PYTHON, "-m", "norm_plugin", "compose", json.dumps(vars(args))],
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "PYTHONSAFEPATH": "1",  # do not import a norm_plugin from the working directory
            "PYTHONPATH": python_path(ROOT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        *traceback, last = process.stderr.splitlines() or [""]
        if not last.startswith("error: "):
            print(*traceback, sep="\n", file=sys.stderr)
        reason = last.removeprefix("error: ") or exit_reason(process.returncode)
        raise CommandError(reason)
    content = json.loads(process.stdout.splitlines()[-1])
    runs = tuple(map(RunSpec.from_json, content.pop("runs")))
    return Composed(runs=runs, **{key: as_tuples(value) for key, value in content.items()})


def main(args: argparse.Namespace) -> int:
    """The command ``sweep``."""
    if args.tuned:
        from norm_lab.experiments.tune import compose_tuned  # it imports pandas

        return run_grid(args, compose_tuned(args))
    return run_grid(args, read_specs(args))


def run_grid(args: argparse.Namespace, composed: Composed) -> int:
    """Run the unfinished runs of a grid; the exit status is 1 unless all are done or diverged."""
    specs = composed.runs
    jobs = count_jobs(args, composed)
    if args.status:
        print(overview(specs, jobs))
        return 0
    if args.dry_run:
        for spec in specs:
            print_commands(spec)
        return 0
    skipped = (DONE,) if args.retry else (DONE, DIVERGED)
    left = [number for number, spec in enumerate(specs) if state_of(spec).state not in skipped]
    if left:
        with show_progress(specs, jobs, left):
            if args.launcher == "local":
                run_here(args, composed, left, jobs)
            else:
                run_by_slurm(args, composed, left)
    print(overview(specs, jobs))
    return int(any(state_of(spec).state not in (DONE, DIVERGED) for spec in specs))


def run_one(args: argparse.Namespace) -> int:
    """The command ``run``, and each job of a sweep."""
    spec = read_spec(args.spec) if "spec" in args else read_specs(args).runs[0]
    if args.dry_run:
        print_commands(spec)
    else:
        execute(spec, os.environ, args.retry)
    return 0


def run_demo(args: argparse.Namespace) -> int:
    """The command ``demo``: a sweep on all cores, the table of its results, and their page."""
    composed = read_specs(args)
    args.jobs, args.threads = min(len(os.sched_getaffinity(0)), len(composed.runs)), 1
    status = run_grid(args, composed)
    if status or args.dry_run:
        return status
    results = composed.runs[0].result.parent
    page = results.parent.parent / "demo"
    print(f"\n{_output_of('table', results)}")
    print(DEMO_END)
    _output_of("report", results, "--out", page, "--baseline", composed.runs[0].label)
    print(f"The page, with curves: {page / 'index.html'}\nResults: {results}")
    return 0


def _output_of(verb: str, *argv: str | Path) -> str:
    """The output of a command of this package, run in a child process."""
    command = [*PYTHON, "-m", "norm_plugin", verb, *map(str, argv)]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return process.stdout


# --- on this machine ----------------------------------------------------------------------------


def count_jobs(args: argparse.Namespace, composed: Composed) -> int:
    """The number of runs at once; CommandError if it exceeds the number of GPUs."""
    if args.launcher != "local":
        return len(composed.runs)
    gpus = gpus_of(composed)
    jobs = int(args.jobs or max(len(gpus), 1))
    if gpus and jobs > len(gpus):
        raise CommandError(
            f"--jobs {jobs}, but this machine has {len(gpus)} GPUs, and each run needs one"
        )
    return jobs


def gpus_of(composed: Composed) -> Sequence[str]:
    """The GPUs to distribute, one for each run; none if all runs are on the CPU."""
    on_gpus = any("--cpu" not in spec.training for spec in composed.runs)
    return composed.gpus if on_gpus else ()


def run_here(
    args: argparse.Namespace, composed: Composed, numbers: Sequence[int], jobs: int
) -> None:
    """Execute some of the runs, ``jobs`` at once; a failure does not stop the others."""
    folder = job_folder(args, composed)
    threads = str(args.threads or max(len(os.sched_getaffinity(0)) // jobs, 1))
    places: SimpleQueue[dict[str, str]] = SimpleQueue()
    gpus = gpus_of(composed)
    for number in range(jobs):
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[number]} if gpus else {}
        places.put({"OMP_NUM_THREADS": threads, **gpu})

    def job(number: int) -> None:
        spec = folder / f"{number}.json"
        write_spec(composed.runs[number], spec)
        command = [*PYTHON, "-m", "norm_plugin", "job", str(spec)]
        place = places.get()
        try:
            run_job([*command, *(["--retry"] if args.retry else [])], spec, place)
        finally:
            places.put(place)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(job, numbers))


def run_job(command: Sequence[str], spec: Path, environment: Mapping[str, str]) -> int:
    """Run a command, with a log beside its spec; it ends when this process ends."""
    with open(spec.with_suffix(".log"), "a", encoding="utf-8") as log:
        return subprocess.run(
            [*DIE_WITH_PARENT, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def job_folder(args: argparse.Namespace, composed: Composed) -> Path:
    """The folder of the files of jobs; each grid has its own, as older jobs may still wait."""
    text = json.dumps([spec.to_json() for spec in composed.runs])
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = composed.runs[0].work / "sweeps" / Path(args.experiment).stem / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- as jobs of Slurm ---------------------------------------------------------------------------


def run_by_slurm(args: argparse.Namespace, composed: Composed, numbers: Sequence[int]) -> None:
    """Execute some of the runs as Slurm jobs, and wait for them.

    A job composes its run on its node, since that may have a GPU when this machine has none.
    """
    try:
        import submitit
    except ImportError as error:
        raise CommandError(
            "--launcher submitit_slurm needs submitit: pip install 'norm_plugin[slurm]'"
        ) from error
    folder = job_folder(args, composed)
    options = slurm_options(composed.launcher)
    timeouts = options.pop("max_num_timeout", 0)
    executor = submitit.AutoExecutor(
        folder / "slurm", cluster="slurm", slurm_max_num_timeout=timeouts
    )
    executor.update_parameters(**options)
    commands = [run_command_line(args, composed, number) for number in numbers]
    specs = [str(folder / f"{number}.json") for number in numbers]
    environment = {} if args.threads is None else {"OMP_NUM_THREADS": str(args.threads)}
    for job in executor.map_array(SlurmJob(environment), commands, specs):
        job.wait()


def slurm_options(overrides: Sequence[str]) -> dict[str, Any]:
    """``hydra.launcher.KEY=VALUE`` as parameters of submitit; CommandError for anything else."""
    from omegaconf import OmegaConf

    options: dict[str, Any] = dict(SLURM_DEFAULTS)
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not key.startswith(LAUNCHER) or not equals:
            raise CommandError(f"{override}: options of the launcher are {LAUNCHER}KEY=VALUE")
        value = OmegaConf.select(OmegaConf.from_dotlist([override]), key)
        key = key.removeprefix(LAUNCHER)
        options[key if key in GENERIC else f"slurm_{key}"] = value
    return options


@dataclass
class SlurmJob:
    """The function that submitit calls in a Slurm job, again if the job is requeued."""

    environment: dict[str, str]

    def __call__(self, command: Sequence[str], spec: str) -> int:
        """Run a command, which resumes its run."""
        return run_job(command, Path(spec), self.environment)

    def checkpoint(self, command: Sequence[str], spec: str) -> Any:
        """Called before the job is requeued."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, command, spec)


def run_command_line(args: argparse.Namespace, composed: Composed, number: int) -> list[str]:
    """The command line of one run of the grid, with absolute paths."""
    command = [*PYTHON, "-m", "norm_plugin", "run", composed.experiment]
    command += composed.overrides[number]
    for name in ("user_dir", "raw", "pretrained", "work", "results"):
        if getattr(args, name) is not None:
            folder = os.path.join(os.getcwd(), getattr(args, name))
            command += [f"--{name.replace('_', '-')}", folder]
    for name in ("fold_norms", "smoke", "tensorboard", "retry"):
        command += [f"--{name.replace('_', '-')}"] if getattr(args, name) else []
    return [*command, "--", *args.extra_flags]


# --- the state of the grid ----------------------------------------------------------------------


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
    """The status of a run of this sweep: waiting if it failed or diverged before ``began``."""
    status = state_of(spec)
    again = status.state in (FAILED, DIVERGED) and status.updated < began
    return Status(WAITING) if again else status


def overview(specs: Sequence[RunSpec], jobs: int) -> str:
    """The status of each run, one a line, and the summary."""
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


def summary(states: Sequence[Status], jobs: int) -> str:
    """One line: ``3 done, 2 running, 19 waiting of 24; about 4 h 10 min left``."""
    counts = Counter(status.state for status in states)
    parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    left = seconds_left(states, jobs)
    end = "" if left is None else f"; about {duration(left)} left"
    return f"{', '.join(parts)} of {len(states)}{end}"


def seconds_left(states: Sequence[Status], jobs: int) -> float | None:
    """An estimate for the whole grid; None if no duration is known, 0 if all runs have ended."""
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
