"""Run a grid as Slurm jobs, which submitit starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.options import LAUNCHER, Request
from norm_lab.config.spec import RunSpec
from norm_lab.engine.jobs import start_job, write_runs
from norm_plugin.io.command_line import CommandError

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
"""submitit's options for every cluster; the names of all others start with ``slurm_``."""


def run_by_slurm(request: Request, specs: Sequence[RunSpec]) -> None:
    """Execute runs as Slurm jobs, and wait for them."""
    try:
        import submitit
    except ImportError as error:
        raise CommandError(
            "--launcher submitit_slurm needs submitit: pip install 'norm_plugin[slurm]'"
        ) from error
    options = slurm_options(request.overrides)
    timeouts = options.pop("max_num_timeout", 0)
    folder = specs[0].work / "slurm" / Path(request.experiment).stem
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
    executor.update_parameters(**options)
    folders = [str(spec.folder) for spec in write_runs(specs)]
    environment = {} if request.threads is None else {"OMP_NUM_THREADS": str(request.threads)}
    for submitted in executor.map_array(SlurmJob(request.retry, environment), folders):
        submitted.wait()


def slurm_options(overrides: Mapping[str, str | None]) -> dict[str, Any]:
    """Return ``hydra.launcher.KEY=VALUE`` as parameters of submitit."""
    from omegaconf import OmegaConf

    options: dict[str, Any] = dict(SLURM_DEFAULTS)
    for key, value in overrides.items():
        if key.startswith(LAUNCHER):
            name = key.removeprefix(LAUNCHER)
            typed = OmegaConf.select(OmegaConf.from_dotlist([f"{key}={value}"]), key)
            options[name if name in GENERIC else f"slurm_{name}"] = typed
    return options


@dataclass
class SlurmJob:
    """The function that submitit calls in a Slurm job, and again if the job is requeued."""

    retry: bool
    environment: dict[str, str]

    def __call__(self, folder: str) -> int:
        """Execute or resume the run in a folder."""
        return start_job(Path(folder), self.environment, self.retry).wait()

    def checkpoint(self, folder: str) -> Any:
        """Return the call to submit; submitit calls this before a job is requeued."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, folder)
