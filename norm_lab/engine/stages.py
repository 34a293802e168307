"""The stages of a run, and their keys: the training, and what follows it.

The key of a stage is a digest of the previous stage's key and of the stage's command. A stage runs
again if its command, or anything before it, has changed. Paths inside the folders of the run and of
its data are not part of a key, so a run may be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from norm_lab.config.spec import RunSpec
from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.paths import FILES, PYTHON, ROOT, python_path
from norm_lab.run.flags import averaging_flags, training_flags

PREPARE, TRAIN = "prepare", "train"
"""The stage that prepares the data, which several runs share, and that of the training."""
PLUGIN = ("-m", "norm_plugin")
SRUN = ("srun", "--kill-on-bad-exit=1")


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Attributes:
        key: identifies the command and its inputs.
        product: the file that the stage creates last.
    """

    name: str
    spec: RunSpec
    key: str
    product: Path

    @property
    def command(self) -> tuple[str, ...]:
        """The command, in the root of the checkout; looking for GPUs imports torch."""
        if self.name == TRAIN:
            return (*(SRUN if self.spec.srun else ()), *PYTHON, *_training(self.spec))
        return (*PYTHON, *PLUGIN, "finish", str(self.spec.folder))


def data_command(spec: RunSpec) -> tuple[str, ...]:
    """Return the command of data preparation, which skips finished steps."""
    program = spec.preparation.program
    own = os.path.isabs(program)
    path = program if own else os.path.relpath(FILES / program, ROOT)
    command = (*PYTHON, path, "--out", str(spec.data), *spec.preparation.arguments())
    if not own:
        return command
    # a program outside the checkout imports the helpers of data-prep
    return ("env", f"PYTHONPATH={python_path(FILES / 'data-prep', ROOT)}", *command)


def data_key(spec: RunSpec) -> str:
    """Return the key of the prepared data: its checksums, the command and its raw files."""
    program = spec.preparation.program
    command = [program, "--out", *spec.preparation.arguments()]
    if os.path.isabs(program) and Path(program).is_file():  # of the user's own
        command.append(hashlib.sha256(Path(program).read_bytes()).hexdigest())
    raw = spec.preparation.options.get("raw")
    return next_key(_digest_of_data(spec), [*command, *_raw_files(raw)])


def _raw_files(folder: str | None) -> list[str]:
    """Return the name, size and time of each raw file that a preparation is given.

    If one changes, the preparation runs again, and compares the content with its manifest.
    """
    files = sorted(Path(folder).iterdir()) if folder is not None and Path(folder).is_dir() else []
    stats = [(path.name, path.stat()) for path in files if path.is_file()]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]


def _digest_of_data(spec: RunSpec) -> str:
    """Return the digest of the manifest of the prepared data; empty if there is none."""
    manifest = spec.data / "manifest.json"
    if not manifest.is_file():
        return ""
    named = f"{manifest.name} {hashlib.sha256(manifest.read_bytes()).hexdigest()}"
    return hashlib.sha256(named.encode()).hexdigest()


def next_key(key: str, arguments: Iterable[str]) -> str:
    """Return the key of a stage with these arguments; ``key`` is that of the previous stage."""
    return hashlib.sha256("\0".join([key, *arguments]).encode()).hexdigest()


def run_stages(spec: RunSpec) -> tuple[Stage, Stage]:
    """Return the stages of a run after its data is prepared: the training, and what follows it.

    What follows, ``norm-plugin finish``, averages the checkpoints, evaluates and scores.
    """
    metric = find_metric(spec.metric)
    sources = json.dumps(spec.sources, sort_keys=True) if spec.sources else ""
    key = next_key(sources + _digest_of_data(spec), ("train", *training_flags(spec.settings)))
    last = spec.checkpoints / "checkpoint_last.pt"
    train = Stage(TRAIN, spec, key, last)
    averaging = averaging_flags(spec.settings) if metric.checkpoint == AVERAGE else []
    command = (*averaging, *metric.module.split(), *evaluation_flags(spec))
    finish = next_key(key, (*command, spec.experiment, spec.label, str(spec.seed)))
    return train, Stage(f"finish{spec.folded_suffix}", spec, finish, spec.result)


def evaluation_flags(spec: RunSpec) -> list[str]:
    """Return the flags of the evaluation of the test set that affect the score."""
    flags = find_metric(spec.metric).flags(spec.subword, spec.settings)
    return [*flags, *(["--fold-norms"] if spec.fold else [])]


def _training(spec: RunSpec) -> tuple[str, ...]:
    """Return the arguments of Python; flags in ``unkeyed`` (logging) do not identify a training."""
    unkeyed, module = [], "fairseq_cli.train"
    if spec.tensorboard:
        unkeyed += ["--tensorboard-logdir", str(spec.folder / "tensorboard")]
    if spec.srun:
        # fairseq reads the rest from Slurm; no other job on the node may have the same port
        port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
        unkeyed += ["--distributed-port", str(port)]
        if spec.on_cpu:
            module = "norm_plugin worker"
    if spec.pretrained is not None:  # its digest is a setting, and so part of the label
        unkeyed += ["--finetune-from-model", str(spec.pretrained)]
    where = ("--save-dir", str(spec.checkpoints))
    settings = dict(spec.settings)
    settings["common"] = {**settings["common"], **spec.logging}
    if on_cpu(spec):
        settings["common"]["cpu"] = True
        # a worker is a fork for one epoch: it copies the training's memory, and ends epochs later
        settings["dataset"] = {"num_workers": 0, **settings.get("dataset", {})}
        if not spec.srun:
            settings.pop("distributed_training", None)
    flags = training_flags(settings)
    return ("-m", *module.split(), str(spec.data / "bin"), *unkeyed, *flags, *where)


def on_cpu(spec: RunSpec) -> bool:
    """Return whether the training is on the CPU: by its settings, or as this machine has no GPU."""
    if spec.srun or spec.on_cpu:  # srun chooses the machine
        return spec.on_cpu
    import torch

    return torch.cuda.device_count() == 0


def has_content(path: Path) -> bool:
    """Return whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0
