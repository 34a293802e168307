"""Starts the runs of a sweep by hydra's multirun: on this machine, or a Slurm job each.

hydra's launchers are given the numbers of the runs, and each job starts one run in a process of its
own: fairseq keeps state in its modules, which one run would hand on to the next. A job imports this
module, so it imports neither torch nor fairseq.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hydra

from norm_plugin.commands.command_line import write_text
from norm_plugin.experiments import processes

QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null")


@dataclass(frozen=True)
class Resources:
    """What the jobs of a sweep share.

    Attributes:
        jobs: runs at once.
        threads: of each run; None leaves that to the job.
        gpus: of this machine, to be handed out one each; empty where there are none.
    """

    jobs: int
    threads: int | None
    gpus: tuple[str, ...]


def launch(
    commands: Sequence[Sequence[str]],
    root: Path,
    folder: Path,
    launcher: str,
    resources: Resources,
    further: Sequence[str],
) -> None:
    """Run each of ``commands`` to its end; one that fails does not end the others.

    Args:
        root: where the commands run.
        folder: for what hydra and Slurm write, in a folder for each list of commands: another
            sweep may be started here while the jobs of this one wait.
        launcher: joblib or submitit_slurm.
        further: overrides of hydra's, such as ``hydra.launcher.partition=gpu``.
    """
    asked = {"root": str(root), "commands": commands, "resources": vars(resources)}
    text = json.dumps(asked, indent=2)
    folder /= hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    jobs = folder / "jobs.json"
    write_text(jobs, text)
    words = ["sweep", "--multirun", f"hydra/launcher={launcher}", *QUIET]
    words += [f"hydra.sweep.dir='{folder}/hydra'", "hydra.sweep.subdir=${hydra.job.num}"]
    if launcher == "joblib":
        words += [f"hydra.launcher.n_jobs={resources.jobs}", "hydra.launcher.batch_size=1"]
        words += [f"hydra.launcher.pre_dispatch={resources.jobs}"]
    words += [*further, f"+jobs='{jobs}'", f"+job={','.join(map(str, range(len(commands))))}"]
    with patch.object(sys, "argv", words):
        hydra.main(version_base="1.3", config_path=None)(run_job)()


def run_job(config: Any) -> int:
    """The task of hydra: run one of the commands; returns its exit status."""
    jobs = json.loads(Path(config.jobs).read_text(encoding="utf-8"))
    resources = Resources(**jobs["resources"])
    command = jobs["commands"][config.job]
    with _slot(Path(config.jobs).parent, resources) as environment:
        console = Path(config.jobs).parent / f"{config.job}.log"
        with open(console, "a", encoding="utf-8") as stream:
            return subprocess.run(
                [*processes.TIED, *command],
                cwd=jobs["root"],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode


@contextmanager
def _slot(folder: Path, resources: Resources) -> Iterator[dict[str, str]]:
    """Take one of as many places as there are jobs; gives the variables of its GPU and threads.

    The system gives a place back when the process that holds it ends, however that ends.
    """
    environment: dict[str, str] = {}
    if resources.threads is not None:
        environment["OMP_NUM_THREADS"] = str(resources.threads)
    for number in range(resources.jobs):
        with open(folder / f"slot{number}", "a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if resources.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = resources.gpus[number]
            yield environment
            return
    yield environment  # a job of Slurm, which hands out its GPUs itself
