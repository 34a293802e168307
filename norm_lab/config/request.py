"""The request that a command line makes, and the runs that are composed for it.

The process that supervises runs converts its options to a :class:`Request`. A child process
composes it (``compose.py``), and returns :class:`Composed`. Both are exchanged as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.spec import RunSpec, as_tuples, from_json, to_json

LOCAL, SLURM = "local", "submitit_slurm"
AUTO = "auto"
"""The value of ``gpus`` for one GPU, or for the CPU if there is none."""


@dataclass(frozen=True)
class Request:
    """The options of ``run``, ``sweep``, ``status``, ``tune``, ``study`` or ``demo``.

    Paths are absolute.

    Attributes:
        experiment: the name of an experiment or a study, or the path of a YAML file.
        overrides: overrides for every run, in hydra's syntax.
        runs: the overrides of each run, in order; None: those of the experiment or the study.
        extra_flags: flags of ``fairseq-train`` for every run, which override its settings.
        grid: whether there may be several runs.
        user_dir: the user's own ``--user-dir``.
        raw: the folder of the raw corpus.
        pretrained: the checkpoint to fine-tune.
        work: the folder for data and checkpoints; None: that of the checkout.
        results: the folder of the results; None: that in ``work``.
        fold_norms: evaluate with folded norms.
        smoke: test all stages with a tiny model.
        tensorboard: write curves for TensorBoard.
        gpus: a number, or AUTO.
        scale_batch_size: multiply the batch size by the number of GPUs.
        srun: train by srun, in a Slurm job.
        retry: repeat the training of a run that has diverged.
        dry_run: print the commands without running them.
        status: only print the status of the runs.
        tuned: use the tuned values of each arm.
        launcher: LOCAL or SLURM.
        jobs: the number of parallel runs; None: one per GPU, or one.
        threads: threads per run; None: the cores divided by the jobs.
    """

    experiment: str
    overrides: tuple[str, ...] = ()
    runs: tuple[tuple[str, ...], ...] | None = None
    extra_flags: tuple[str, ...] = ()
    grid: bool = False
    user_dir: Path | None = None
    raw: Path | None = None
    pretrained: Path | None = None
    work: Path | None = None
    results: Path | None = None
    fold_norms: bool = False
    smoke: bool = False
    tensorboard: bool = False
    gpus: str = AUTO
    scale_batch_size: bool = False
    srun: bool = False
    retry: bool = False
    dry_run: bool = False
    status: bool = False
    tuned: bool = False
    launcher: str = LOCAL
    jobs: int | None = None
    threads: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the runs are not for this machine, so that its GPUs do not matter."""
        return self.dry_run or self.status or self.srun or self.launcher != LOCAL

    def to_json(self) -> dict[str, Any]:
        """Return the request in types that JSON has."""
        return to_json(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Request:
        """Return the request from the result of :meth:`to_json`."""
        return from_json(cls, content)


@dataclass(frozen=True)
class Composed:
    """The runs of a request.

    Attributes:
        runs: the specs of the runs.
        overrides: the overrides of each run.
        experiment: the experiment of all runs.
        launcher: overrides of the launcher of jobs, such as ``hydra.launcher.partition=gpu``.
        gpus: the GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them.
    """

    runs: tuple[RunSpec, ...]
    overrides: tuple[tuple[str, ...], ...]
    experiment: str
    launcher: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the runs in types that JSON has."""
        return {**vars(self), "runs": [spec.to_json() for spec in self.runs]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Composed:
        """Return the runs from the result of :meth:`to_json`."""
        values = {key: as_tuples(value) for key, value in content.items()}
        return cls(**{**values, "runs": tuple(map(RunSpec.from_json, content["runs"]))})
