"""The stages of a run, as commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.experiments import processes
from norm_plugin.experiments.metrics import AVERAGE
from norm_plugin.experiments.plan import Plan
from norm_plugin.experiments.settings import ROOT, SUBWORDS

DATA_STAGES = ("fetch", "prepare", "binarize")


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        command: what is run, in the root of the checkout.
        words: what identifies it: a change of them makes the stage and all after it anew.
        product: the file that it makes; None for a stage that sees for itself whether it is done.
        output: the file that its stdout becomes; None where that goes to the log.
        before: a command that is run first.
        later: the stages that rest on it.
    """

    name: str
    command: tuple[str, ...]
    words: tuple[str, ...] = ()
    product: Path | None = None
    output: Path | None = None
    before: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def data_stages(plan: Plan) -> list[Stage]:
    """Raw text to binarized data; several runs share it, so these stages lock it themselves."""
    settings = plan.settings
    corpus = settings.facts.corpus
    if os.path.isabs(corpus):  # outside the checkout, it imports the helpers of data-prep
        path = [str(ROOT / "data-prep"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        words = ["env", f"PYTHONPATH={os.pathsep.join(path)}", *processes.PYTHON, corpus]
    else:
        words = [*processes.PYTHON, f"data-prep/{corpus}.py"]
    words += ["--out", str(plan.data)]
    words += ["--raw", str(settings.raw)] if settings.raw is not None else []
    words += ["--subword", settings.subword] if settings.subword != SUBWORDS[0] else []
    if settings.facts.merges is not None:
        words += ["--merges", str(settings.facts.merges)]
    if settings.facts.split_by_seed:
        words += ["--split-seed", str(settings.seed)]
    if settings.pretrained is not None:
        words += ["--dictionary", str(settings.pretrained.dictionary)]
    return [Stage(name, (*words, "--only", name)) for name in DATA_STAGES]


def run_stages(plan: Plan) -> list[Stage]:
    """The stages of a run after its data is prepared."""
    metric = plan.metric
    evaluate, score = f"{metric.stage}{plan.variant}", f"score{plan.variant}"
    scored = [f"{name}{end}" for name in (metric.stage, "score") for end in ("", "-folded")]
    averaged = metric.checkpoint == AVERAGE
    return [
        _train(plan, (*(["average"] if averaged else []), *scored)),
        *([_average(plan, tuple(scored))] if averaged else []),
        _evaluate(plan, evaluate, (score,)),
        _score(plan, score, plan.folder / f"{evaluate}.log"),
    ]


def _train(plan: Plan, later: tuple[str, ...]) -> Stage:
    """The training; what only shows it, or depends on the job, does not identify it."""
    settings = plan.settings
    launch, unkeyed, module = [], [], "fairseq_cli.train"
    if settings.tensorboard:
        unkeyed += ["--tensorboard-logdir", str(plan.folder / "tensorboard")]
    if settings.srun:
        # fairseq asks Slurm for the rest; the port must be one that no other job on the node takes
        launch = ["srun", "--kill-on-bad-exit=1"]
        port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
        unkeyed += ["--distributed-port", str(port)]
        if "--cpu" in plan.training:
            module = "norm_plugin worker"
    if settings.pretrained is not None:  # the folder of the run is named after its content
        unkeyed += ["--finetune-from-model", str(settings.pretrained.checkpoint)]
    command = [*launch, *_module(module), str(plan.data / "bin"), *unkeyed]
    return Stage(
        "train",
        (*command, *plan.training, "--save-dir", str(plan.checkpoints)),
        words=("train", *plan.identity),
        product=plan.checkpoints / "checkpoint_last.pt",
        before=(*_module("norm_plugin repair"), str(plan.checkpoints)),
        later=later,
    )


def _average(plan: Plan, later: tuple[str, ...]) -> Stage:
    folders = ("--inputs", str(plan.checkpoints), "--output", str(plan.folder / "averaged.pt"))
    command = (*_module("norm_plugin average"), *folders, *_user_dir(plan))
    return Stage(
        "average",
        (*command, *plan.averaging),
        words=("average", *plan.averaging),
        product=plan.folder / "averaged.pt",
        later=later,
    )


def _evaluate(plan: Plan, name: str, later: tuple[str, ...]) -> Stage:
    """The evaluation of the test set, such as its translation."""
    settings, metric = plan.settings, plan.metric
    subword = "" if settings.subword == SUBWORDS[0] else settings.subword
    words = metric.flags(subword, plan.generation)
    words += ["--fold-norms"] if settings.fold else []
    command = [*_module(metric.module), str(plan.data / "bin")]
    command += ["--user-dir", str(settings.user_dir or "norm_plugin"), "--gen-subset", "test"]
    command += ["--path", str(plan.evaluated), *words]
    log = plan.folder / f"{name}.log"
    return Stage(name, tuple(command), (metric.stage, *words), log, output=log, later=later)


def _score(plan: Plan, name: str, log: Path) -> Stage:
    settings = plan.settings
    words = ["--experiment", plan.experiment, "--norm", f"{plan.label}{plan.variant}"]
    words += ["--seed", str(settings.seed)]
    words += ["--differs", json.dumps(plan.differs, sort_keys=True)] if plan.differs else []
    command = [*_module("norm_plugin result"), *words]
    command += ["--sources", json.dumps(plan.sources)] if plan.sources else []
    command += ["--metric", plan.metric.name, "--checkpoint", str(plan.evaluated)]
    command += ["--last", str(plan.checkpoints / "checkpoint_last.pt"), *_user_dir(plan)]
    command += ["--log", str(log), "--data", str(plan.data)]
    command += ["--train-log", str(plan.log_of("train"))]
    command += ["--memory", str(plan.folder / "stages" / "train.memory")]
    command += ["--out", str(settings.results)]
    return Stage(name, tuple(command), ("score", *words), plan.result)


def _module(name: str) -> tuple[str, ...]:
    return (*processes.PYTHON, "-m", *name.split())


def _user_dir(plan: Plan) -> Iterable[str]:
    user_dir = plan.settings.user_dir
    return () if user_dir is None else ("--user-dir", str(user_dir))
