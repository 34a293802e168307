"""The stages of a run, as commands with the keys under which they count as done.

A key is a digest of the key before it and of the words that identify the stage's command, so that a
stage is done again where its own words, or anything before it, have changed. Paths inside the run's
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
from norm_plugin.experiments.spec import AVERAGE, ROOT, RunSpec, user_dir_words

DATA_STAGES = ("fetch", "prepare", "binarize")
PLUGIN = ("-m", "norm_plugin")


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        key: under which it counts as done.
        command: what is run, in the root of the checkout, without Python.
        product: the file that it makes.
        output: the file that its stdout becomes; None where that goes to the log.
        check: the command that looks at the product before the stage counts as done.
        later: the stages that rest on it.
    """

    name: str
    key: str
    command: tuple[str, ...]
    product: Path
    output: Path | None = None
    check: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def data_command(spec: RunSpec, stage: str) -> tuple[str, ...]:
    """The command of a stage of data preparation."""
    command = (*processes.PYTHON, *spec.preparation, "--only", stage)
    if not os.path.isabs(spec.preparation[0]):
        return command
    # outside the checkout, it imports the helpers of data-prep
    path = [str(ROOT / "data-prep"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ("env", f"PYTHONPATH={os.pathsep.join(path)}", *command)


def manifest_digest(spec: RunSpec) -> str:
    """Of the prepared data; empty where there is none."""
    return digest_of_files([spec.data / "manifest.json"], spec.data)


def data_key(spec: RunSpec) -> str:
    """Of the data as it is, and of how it was prepared."""
    words = [word for word in spec.preparation if word != str(spec.data)]
    return next_key(manifest_digest(spec), words)


def next_key(key: str, words: Iterable[str]) -> str:
    """The key of a stage that these words identify, after stages with ``key``."""
    return hashlib.sha256("\0".join([key, *words]).encode()).hexdigest()


def digest_of_files(paths: Iterable[Path], root: Path) -> str:
    """A digest of the names and contents of files in ``root``; empty where there are none."""
    parts = [
        f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(paths)
        if path.is_file()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def run_stages(spec: RunSpec) -> list[Stage]:
    """The stages of a run after its data is prepared, in order."""
    averaged = spec.checkpoint == AVERAGE
    stage, module, flags = spec.evaluation
    scored = [f"{name}{end}" for name in (stage, "score") for end in ("", "-folded")]
    sources = json.dumps(spec.sources, sort_keys=True) if spec.sources else ""
    key = next_key(sources + manifest_digest(spec), ("train", *spec.identity))
    stages = [
        Stage(
            "train",
            key,
            _training(spec),
            spec.checkpoints / "checkpoint_last.pt",
            check=_check_training(spec),
            later=(*(["average"] if averaged else []), *scored),
        )
    ]
    if averaged:
        key = next_key(key, ("average", *spec.averaging))
        files = ("--inputs", str(spec.checkpoints), "--output", str(spec.evaluated))
        stages.append(
            Stage(
                "average",
                key,
                (*PLUGIN, "average", *files, *user_dir_words(spec), *spec.averaging),
                spec.evaluated,
                later=tuple(scored),
            )
        )
    key = next_key(key, (stage, *flags))
    log = spec.folder / f"{stage}{spec.variant}.log"
    where = ("--user-dir", str(spec.user_dir or "norm_plugin"), "--gen-subset", "test")
    command = (str(spec.data / "bin"), *where, "--path", str(spec.evaluated), *flags)
    check = (*PLUGIN, "check-stage", "evaluation", str(log), "--data", str(spec.data))
    stages.append(
        Stage(
            f"{stage}{spec.variant}",
            key,
            ("-m", *module.split(), *command),
            log,
            output=log,
            check=(*check, "--metric", spec.metric),
            later=(f"score{spec.variant}",),
        )
    )
    words = _score_words(spec)
    key = next_key(key, ("score", *words))
    stages.append(Stage(f"score{spec.variant}", key, _score(spec, words, log), spec.result))
    return stages


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


def _check_training(spec: RunSpec) -> tuple[str, ...]:
    """All checkpoints that are averaged, or the best one, and the last one can be read."""
    which = spec.averaging if spec.checkpoint == AVERAGE else ("--best",)
    return (*PLUGIN, "check-stage", "training", str(spec.checkpoints), *which)


def _score_words(spec: RunSpec) -> list[str]:
    words = ["--experiment", spec.experiment, "--norm", f"{spec.label}{spec.variant}"]
    words += ["--seed", str(spec.seed)]
    return words + (["--differs", json.dumps(spec.differs, sort_keys=True)] if spec.differs else [])


def _score(spec: RunSpec, words: Iterable[str], log: Path) -> tuple[str, ...]:
    return (
        *(*PLUGIN, "result", *words, "--metric", spec.metric),
        *(("--sources", json.dumps(spec.sources)) if spec.sources else ()),
        *("--checkpoint", str(spec.evaluated)),
        *("--last", str(spec.checkpoints / "checkpoint_last.pt"), *user_dir_words(spec)),
        *("--log", str(log), "--data", str(spec.data)),
        *("--train-log", str(spec.log_of("train"))),
        *("--memory", str(spec.stages / "train.memory")),
        *("--out", str(spec.results)),
    )


def has_content(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0
