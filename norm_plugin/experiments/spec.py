"""What identifies a run: one typed value, from which its name, folders, stages and keys follow.

Composing it takes hydra, fairseq and torch, and happens in one short child process for all runs of
a command: :func:`read_specs`. The process that supervises runs imports only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments import processes

ROOT = Path(__file__).resolve().parents[2]
Sources = Mapping[str, str]
"""The digest of each file of a user dir that a run rests on, by its path."""
AVERAGE, BEST = "average", "best"
"""The average of the last checkpoints, and the one that was best on the validation set."""


@dataclass(frozen=True)
class RunSpec:
    """One run, composed and checked.

    Attributes:
        experiment: the name of the folder of its results, ``multi30k_cpu``.
        label: the norm and what differs from the recipe, ``powernorm-released``.
        differs: the settings that differ from the recipe.
        metric: by which it is scored, a file of ``norm_plugin/experiments/metrics/``.
        checkpoint: which one is evaluated, AVERAGE or BEST.
        evaluation: the stage that evaluates the test set, its command, and the flags that decide
            the score.
        item: how each line of its output begins that stands for one item, and what items are
            called; None where it prints no such lines.
        digits: of a score, after the point.
        training: the flags of ``fairseq-train``.
        identity: the same with the recipe's own flags of logging, which identify no run.
        averaging: those of ``norm-plugin average``.
        preparation: the command of data preparation.
        data: the folder of the prepared corpus.
        user_dir: the user's own ``--user-dir``.
        sources: the digests of the files of the user dir that the training rests on.
        pretrained: a checkpoint that is fine-tuned.
        fold: evaluate with folded norms.
        srun: train by srun, in a Slurm job.
    """

    experiment: str
    label: str
    seed: int
    differs: Mapping[str, Any]
    metric: str
    checkpoint: str
    evaluation: tuple[str, str, tuple[str, ...]]
    item: tuple[str, str] | None
    digits: int
    training: tuple[str, ...]
    identity: tuple[str, ...]
    averaging: tuple[str, ...]
    preparation: tuple[str, ...]
    data: Path
    work: Path
    results: Path
    user_dir: Path | None
    sources: Sources
    pretrained: Path | None
    fold: bool
    srun: bool
    tensorboard: bool

    @property
    def folder(self) -> Path:
        """Of checkpoints, translations, logs and stamps."""
        return self.work / "runs" / self.experiment / f"{self.label}-seed{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """The ``--save-dir`` of the training."""
        return self.folder / "checkpoints"

    @property
    def stages(self) -> Path:
        """The folder of the stamps."""
        return self.folder / "stages"

    def log_of(self, stage: str) -> Path:
        """The file with the full output of a stage."""
        return self.folder / "logs" / f"{stage}.log"

    @property
    def evaluated(self) -> Path:
        """The checkpoint that is evaluated."""
        if self.checkpoint == AVERAGE:
            return self.folder / "averaged.pt"
        return self.checkpoints / "checkpoint_best.pt"

    @property
    def variant(self) -> str:
        """What follows the names of stages and of the result, where norms are folded."""
        return "-folded" if self.fold else ""

    @property
    def result(self) -> Path:
        """The file with its scores."""
        return self.results / self.experiment / f"{self.label}{self.variant}-seed{self.seed}.json"

    @property
    def failure(self) -> Path:
        """Where a failure is recorded: ``failed/`` beside the result."""
        return self.result.parent / "failed" / self.result.name

    @property
    def name(self) -> str:
        """For a person: ``multi30k_cpu powernorm, seed 1``."""
        return f"{self.experiment} {self.label}{self.variant}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunSpec:
        """The inverse of :meth:`to_json`."""
        paths = {field.name for field in fields(cls) if "Path" in str(field.type)}
        values: dict[str, Any] = {
            key: Path(value) if key in paths and value is not None else _as_tuples(value)
            for key, value in content.items()
        }
        return cls(**values)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Composed:
    """What a command line asks for.

    Attributes:
        runs: each with the overrides that it alone stands for.
        experiment: of all runs.
        launcher: overrides of the launcher of jobs, such as ``hydra.launcher.partition=gpu``.
        gpus: of this machine, as ``CUDA_VISIBLE_DEVICES`` names them.
    """

    runs: tuple[RunSpec, ...]
    overrides: tuple[tuple[str, ...], ...]
    experiment: str
    launcher: tuple[str, ...]
    gpus: tuple[str, ...]


def read_specs(args: argparse.Namespace) -> Composed:
    """Compose and check every run that a command line asks for, in a child process.

    Raises CommandError for the first that cannot be, before anything is made.
    """
    done = subprocess.run(
        [*processes.PYTHON, "-m", "norm_plugin", "compose", json.dumps(vars(args))],
        env={
            **os.environ,
            "PYTHONWARNINGS": "ignore",
            "PYTHONSAFEPATH": "1",  # a folder norm_plugin where the user stands is not meant
            "PYTHONPATH": python_path(ROOT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        *traceback, last = done.stderr.splitlines() or [""]
        if not last.startswith("error: "):
            print(*traceback, sep="\n", file=sys.stderr)
        reason = last.removeprefix("error: ") or processes.exit_reason(done.returncode)
        raise CommandError(reason)
    content = json.loads(done.stdout.splitlines()[-1])
    runs = tuple(map(RunSpec.from_json, content.pop("runs")))
    return Composed(runs=runs, **{key: _as_tuples(value) for key, value in content.items()})


def changed_sources(before: Sources, now: Sources) -> list[str]:
    """The files that differ, or that only one of the two has."""
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))


def python_path(*folders: Path) -> str:
    """PYTHONPATH with further folders at its start."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])


def command_root() -> Path:
    """The checkout, in which commands run; raises CommandError for an installed package."""
    if not (ROOT / "data-prep").is_dir():
        raise CommandError("experiments need the checkout of norm_plugin, with its data-prep/")
    return ROOT


def write_spec(spec: RunSpec, path: Path) -> None:
    """Store a spec for a process that runs it."""
    path.write_text(json.dumps(spec.to_json()), encoding="utf-8")


def read_spec(path: Path) -> RunSpec:
    """What :func:`write_spec` stored."""
    return RunSpec.from_json(json.loads(path.read_text(encoding="utf-8")))
