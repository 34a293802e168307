"""The stages of a run, as commands with the keys under which they count as done.

A key is a digest of the key before it and of what identifies the stage's command, so that a stage
is done again where its own command, or anything before it, has changed. Paths inside the run's
folder and that of its data do not count: a run may be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.experiments import processes
from norm_plugin.experiments.spec import AVERAGE, ROOT, RunSpec, python_path

PREPARE = "prepare"
"""The stage that makes the data, which several runs share: from raw text to binary files."""
PLUGIN = ("-m", "norm_plugin")


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        key: under which it counts as done.
        command: what is run, in the root of the checkout, without Python.
        product: the file that it makes.
        output: the file that its stdout becomes; None where that goes to the log.
        check: what :func:`norm_plugin.experiments.chain.check_product` is given before the stage
            counts as done.
        later: the stages that rest on it.
    """

    name: str
    key: str
    command: tuple[str, ...]
    product: Path
    output: Path | None = None
    check: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def data_command(spec: RunSpec) -> tuple[str, ...]:
    """The command of data preparation, which leaves out what is done."""
    command = (*processes.PYTHON, *spec.preparation)
    if not os.path.isabs(spec.preparation[0]):
        return command
    # outside the checkout, it imports the helpers of data-prep
    return ("env", f"PYTHONPATH={python_path(ROOT / 'data-prep', ROOT)}", *command)


def data_key(spec: RunSpec) -> str:
    """Of the data as it is, and of how it was prepared."""
    return next_key(_digest_of_data(spec), [a for a in spec.preparation if a != str(spec.data)])


def _digest_of_data(spec: RunSpec) -> str:
    """Of the manifest of the prepared data; empty where there is none."""
    manifest = spec.data / "manifest.json"
    if not manifest.is_file():
        return ""
    named = f"{manifest.name} {hashlib.sha256(manifest.read_bytes()).hexdigest()}"
    return hashlib.sha256(named.encode()).hexdigest()


def next_key(key: str, arguments: Iterable[str]) -> str:
    """The key of a stage that these arguments identify, after stages with ``key``."""
    return hashlib.sha256("\0".join([key, *arguments]).encode()).hexdigest()


def run_stages(spec: RunSpec) -> list[Stage]:
    """The stages of a run after its data is prepared, in order."""
    averaged = spec.checkpoint == AVERAGE
    evaluation, module, flags = spec.evaluation
    scored = tuple(f"{name}{end}" for name in (evaluation, "score") for end in ("", "-folded"))
    sources = json.dumps(spec.sources, sort_keys=True) if spec.sources else ""
    user_dir = () if spec.user_dir is None else ("--user-dir", str(spec.user_dir))

    key = next_key(sources + _digest_of_data(spec), ("train", *spec.identity))
    stages = [
        Stage(
            "train",
            key,
            _training(spec),
            spec.checkpoints / "checkpoint_last.pt",
            check=("training", str(spec.checkpoints), *spec.averaging),
            later=(*(["average"] if averaged else []), *scored),
        )
    ]
    if averaged:
        key = next_key(key, ("average", *spec.averaging))
        files = ("--inputs", str(spec.checkpoints), "--output", str(spec.evaluated))
        command = (*PLUGIN, "average", *files, *user_dir, *spec.averaging)
        stages.append(Stage("average", key, command, spec.evaluated, later=scored))

    key = next_key(key, (evaluation, *flags))
    log = spec.folder / f"{evaluation}{spec.variant}.log"
    where = ("--user-dir", str(spec.user_dir or "norm_plugin"), "--gen-subset", "test")
    data = (str(spec.data / "bin"), *where, "--path", str(spec.evaluated))
    stages.append(
        Stage(
            f"{evaluation}{spec.variant}",
            key,
            ("-m", *module.split(), *data, *flags),
            log,
            output=log,
            check=("evaluation", str(log), str(spec.data), spec.metric),
            later=(f"score{spec.variant}",),
        )
    )

    named = ["--experiment", spec.experiment, "--norm", f"{spec.label}{spec.variant}"]
    named += ["--seed", str(spec.seed)]
    named += ["--differs", json.dumps(spec.differs, sort_keys=True)] if spec.differs else []
    key = next_key(key, ("score", *named))
    command = (
        *(*PLUGIN, "result", *named, "--metric", spec.metric),
        *(("--sources", json.dumps(spec.sources)) if spec.sources else ()),
        *("--checkpoint", str(spec.evaluated)),
        *("--last", str(spec.checkpoints / "checkpoint_last.pt"), *user_dir),
        *("--log", str(log), "--data", str(spec.data)),
        *("--train-log", str(spec.log_of("train"))),
        *("--memory", str(spec.stages / "train.memory")),
        *("--out", str(spec.results)),
    )
    return [*stages, Stage(f"score{spec.variant}", key, command, spec.result)]


def _training(spec: RunSpec) -> tuple[str, ...]:
    """What only shows the training, or depends on the job, does not identify it."""
    unkeyed, module = [], "fairseq_cli.train"
    if spec.tensorboard:
        unkeyed += ["--tensorboard-logdir", str(spec.folder / "tensorboard")]
    if spec.srun:
        # fairseq asks Slurm for the rest; the port must be one that no other job on the node takes
        port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
        unkeyed += ["--distributed-port", str(port)]
        if "--cpu" in spec.training:
            module = "norm_plugin worker"
    if spec.pretrained is not None:  # the folder of the run is named after its content
        unkeyed += ["--finetune-from-model", str(spec.pretrained)]
    where = ("--save-dir", str(spec.checkpoints))
    return ("-m", *module.split(), str(spec.data / "bin"), *unkeyed, *spec.training, *where)


def has_content(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0
