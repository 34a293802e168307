"""What a command line asks for, and the runs that are composed for it.

The process that supervises runs makes a :class:`Request` of its options. A child process composes
it (``compose.py``), and answers with :class:`Composed`. Both are JSON on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.config.spec import RunSpec, as_tuples, from_json, to_json

LOCAL, SLURM = "local", "submitit_slurm"
AUTO = "auto"
"""The value of ``gpus`` for one GPU, or the CPU if there is none."""


@dataclass(frozen=True)
class Request:
    """The options of ``run``, ``sweep``, ``status``, ``tune``, ``study`` or ``demo``.

    Paths are absolute.

    Attributes:
        experiment: the name of an experiment or a study, or the path of a YAML file.
        overrides: in hydra's syntax, for every run.
        runs: the overrides of each run, in order; None for those of the experiment or the study.
        extra_flags: flags of ``fairseq-train``, which come last.
        grid: whether there may be several runs.
        user_dir: the user's own ``--user-dir``.
        raw: the folder of the raw corpus.
        pretrained: the checkpoint that is fine-tuned.
        work: the folder for data and checkpoints; None for that of the checkout.
        results: the folder of the results; None for that in ``work``.
        fold_norms: evaluate with folded norms.
        smoke: test all stages with a tiny model.
        tensorboard: write curves for TensorBoard.
        gpus: a number, or AUTO.
        change_batch: multiply the batch size by the number of GPUs.
        srun: train by srun, in a Slurm job.
        retry: train again a run that has diverged.
        dry_run: print the commands without running them.
        status: print the status of the runs only.
        tuned: use the tuned values of each arm.
        launcher: LOCAL or SLURM.
        jobs: the number of runs at once; None for one per GPU, or one.
        threads: of each run; None to divide the cores.
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
    change_batch: bool = False
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
        """Whether the runs need not be possible on this machine, whose GPUs do not matter then."""
        return self.dry_run or self.status or self.srun or self.launcher != LOCAL

    def to_json(self) -> dict[str, Any]:
        """The request in types that JSON has."""
        return to_json(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Request:
        """The inverse of :meth:`to_json`."""
        return from_json(cls, content)


@dataclass(frozen=True)
class Composed:
    """The runs of a request.

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
    launcher: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The runs in types that JSON has."""
        return {**vars(self), "runs": [spec.to_json() for spec in self.runs]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Composed:
        """The inverse of :meth:`to_json`."""
        values = {key: as_tuples(value) for key, value in content.items()}
        return cls(**{**values, "runs": tuple(map(RunSpec.from_json, content["runs"]))})
