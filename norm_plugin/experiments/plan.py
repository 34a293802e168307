"""The plan of a run: its name, its folders, and its stages as commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments import processes
from norm_plugin.experiments.flag_checks import (
    check_number_averaged,
    check_training,
    import_user_dir,
    refuse_kept,
)
from norm_plugin.experiments.gpus import Recipe, for_workers
from norm_plugin.experiments.naming import (
    differences,
    flag_settings,
    run_label,
    without_defaults,
    workers_label,
)
from norm_plugin.experiments.recipes import (
    averaging_flags,
    generation_flags,
    read_recipe,
    training_flags,
)
from norm_plugin.experiments.results import result_name
from norm_plugin.experiments.settings import ROOT, SUBWORDS, Settings
from norm_plugin.norms import norm_spec

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


@dataclass(frozen=True)
class Plan:
    """One run, ready to be executed.

    Attributes:
        experiment: the name of the folder of its results, ``multi30k_cpu``.
        label: the norm and what differs from the recipe, ``powernorm-released``.
        differs: the settings that differ from the recipe.
        folder: of checkpoints, translations, logs and stamps.
        data: of the prepared corpus.
        result: the file with its scores.
    """

    settings: Settings
    experiment: str
    label: str
    differs: dict[str, Any]
    training: tuple[str, ...]
    averaging: tuple[str, ...]
    generation: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """See the class."""
        name = f"{self.label}-seed{self.settings.seed}"
        return self.settings.work / "runs" / self.experiment / name

    @property
    def checkpoints(self) -> Path:
        """The ``--save-dir`` of the training."""
        return self.folder / "checkpoints"

    def log_of(self, stage: str) -> Path:
        """The file with the full output of a stage."""
        return self.folder / "logs" / f"{stage}.log"

    @property
    def data(self) -> Path:
        """See the class."""
        subword = self.settings.subword
        suffix = "" if subword == SUBWORDS[0] else f"-{subword}"
        return self.settings.work / "data" / f"{self.settings.facts.data_name}{suffix}"

    @property
    def variant(self) -> str:
        """What follows the names of stages and of the result, where norms are folded."""
        return "-folded" if self.settings.fold else ""

    @property
    def result(self) -> Path:
        """See the class."""
        name = result_name(f"{self.label}{self.variant}", self.settings.seed)
        return self.settings.results / self.experiment / name

    @property
    def name(self) -> str:
        """For a person: ``multi30k_cpu powernorm, seed 1``."""
        return f"{self.experiment} {self.label}{self.variant}, seed {self.settings.seed}"


def make_plan(settings: Settings) -> Plan:
    """Compose and check the hyper-parameters of a run, before anything is made.

    Raises CommandError for an unknown recipe, override or flag, a wrong value, an option that no
    chosen norm has, and a batch that the GPUs cannot share.
    """
    try:
        recipe, differs = _compose(settings)
        trained = for_workers(
            recipe,
            settings.gpus,
            settings.further,
            elsewhere=settings.dry or settings.srun,
            change_batch=settings.change_batch,
            srun=settings.srun,
        )
        training = [*training_flags(trained), *settings.further]
        averaging = averaging_flags(recipe, settings.further)
        refuse_kept(settings.further)
        check_number_averaged(training, averaging)
        plugin = settings.user_dir or ROOT / "norm_plugin"  # absolute: the user may stand anywhere
        check_training([*training, "--user-dir", os.path.abspath(plugin)])
    except ValueError as error:
        raise CommandError(str(error)) from error
    return Plan(
        settings,
        _experiment_name(settings),
        run_label(settings.norm, differs)
        + workers_label(settings.gpus, settings.change_batch, "--cpu" in training),
        differs,
        tuple(training),
        tuple(averaging),
        tuple(generation_flags(recipe)),
    )


def _compose(settings: Settings) -> tuple[Recipe, dict[str, Any]]:
    """The hyper-parameters, and what in them differs from the recipe."""
    facts = settings.facts
    groups = [f"norm={settings.norm}", f"common.seed={settings.seed}"]
    groups += [f"recipe={facts.recipe}"] if facts.recipe else []
    groups += ["size=smoke"] if settings.smoke else []
    if settings.user_dir is not None:
        import_user_dir(Path(os.path.abspath(settings.user_dir)))
    base = without_defaults(read_recipe(facts.config, groups), settings.norm)
    overrides = [_norm_option(each, settings.norm, base) for each in settings.overrides]
    recipe = read_recipe(facts.config, [*groups, *overrides])
    recipe = without_defaults(recipe, settings.norm)
    differs = {**differences(recipe, base), **flag_settings(settings.further)}
    if settings.user_dir is not None:
        recipe["common"]["user_dir"] = str(settings.user_dir)
    return recipe, differs


def _norm_option(override: str, norm: str, base: Recipe) -> str:
    """The override of an option of the norm, checked; hydra would only say that it cannot.

    A norm of the user's own has no file in ``configs/norm/``: its options are added.
    """
    key = override.partition("=")[0].removeprefix("model.")
    if not override.startswith("model.norm_") or key in base["model"]:
        return override
    options = [f"norm_{option.name}" for option in norm_spec(norm).options]
    if key in options:
        return f"+{override}"
    raise ValueError(f"{norm} has no option {key}; it has {', '.join(options) or 'none'}")


def _experiment_name(settings: Settings) -> str:
    facts = settings.facts
    subword = "" if settings.subword == SUBWORDS[0] else settings.subword
    parts = [facts.config, facts.recipe, subword, "smoke" if settings.smoke else ""]
    return "_".join(part for part in parts if part)


def data_stages(plan: Plan) -> list[Stage]:
    """Raw text to binarized data; several runs share it, so these stages lock it themselves."""
    settings = plan.settings
    corpus = settings.facts.corpus
    words = [*processes.PYTHON, f"data-prep/{corpus}.py", "--out", str(plan.data)]
    words += ["--raw", str(settings.raw)] if settings.raw is not None else []
    words += ["--subword", settings.subword] if settings.subword != SUBWORDS[0] else []
    if settings.facts.merges is not None:
        words += ["--merges", str(settings.facts.merges)]
    return [Stage(name, (*words, "--only", name)) for name in DATA_STAGES]


def run_stages(plan: Plan) -> list[Stage]:
    """The stages of a run after its data is prepared."""
    generate, score = f"generate{plan.variant}", f"score{plan.variant}"
    scored = [f"{name}{end}" for name in ("generate", "score") for end in ("", "-folded")]
    return [
        _train(plan, ("average", *scored)),
        _average(plan, tuple(scored)),
        _generate(plan, generate, (score,)),
        _score(plan, score, plan.folder / f"{generate}.log"),
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
            module = "norm_plugin.experiments.cpu_worker"
    command = [*launch, *_module(module), str(plan.data / "bin"), *unkeyed]
    return Stage(
        "train",
        (*command, *plan.training, "--save-dir", str(plan.checkpoints)),
        words=("train", *plan.training),
        product=plan.checkpoints / "checkpoint_last.pt",
        before=(*_module("norm_plugin.checkpoints.repair"), str(plan.checkpoints)),
        later=later,
    )


def _average(plan: Plan, later: tuple[str, ...]) -> Stage:
    folders = ("--inputs", str(plan.checkpoints), "--output", str(plan.folder / "averaged.pt"))
    command = (*_module("norm_plugin.checkpoints.average"), *folders, *_user_dir(plan))
    return Stage(
        "average",
        (*command, *plan.averaging),
        words=("average", *plan.averaging),
        product=plan.folder / "averaged.pt",
        later=later,
    )


def _generate(plan: Plan, name: str, later: tuple[str, ...]) -> Stage:
    """The translation of the test set by the averaged weights."""
    settings = plan.settings
    subword = "" if settings.subword == SUBWORDS[0] else f"={settings.subword}"
    words = [f"--remove-bpe{subword}", "--required-batch-size-multiple", "1", *plan.generation]
    words += ["--fold-norms"] if settings.fold else []
    command = [*_module("fairseq_cli.generate"), str(plan.data / "bin")]
    command += ["--user-dir", str(settings.user_dir or "norm_plugin"), "--gen-subset", "test"]
    command += ["--path", str(plan.folder / "averaged.pt"), *words]
    log = plan.folder / f"{name}.log"
    return Stage(name, tuple(command), ("generate", *words), log, output=log, later=later)


def _score(plan: Plan, name: str, log: Path) -> Stage:
    settings = plan.settings
    words = ["--experiment", plan.experiment, "--norm", f"{plan.label}{plan.variant}"]
    words += ["--seed", str(settings.seed)]
    words += ["--differs", json.dumps(plan.differs, sort_keys=True)] if plan.differs else []
    command = [*_module("norm_plugin.experiments.results"), *words]
    command += ["--checkpoint", str(plan.folder / "averaged.pt")]
    command += ["--last", str(plan.checkpoints / "checkpoint_last.pt"), *_user_dir(plan)]
    command += ["--generate-log", str(log), "--data", str(plan.data)]
    command += ["--train-log", str(plan.log_of("train"))]
    command += ["--memory", str(plan.folder / "stages" / "train.memory")]
    command += ["--out", str(settings.results)]
    return Stage(name, tuple(command), ("score", *words), plan.result)


def _module(name: str) -> tuple[str, ...]:
    return (*processes.PYTHON, "-m", name)


def _user_dir(plan: Plan) -> Iterable[str]:
    user_dir = plan.settings.user_dir
    return () if user_dir is None else ("--user-dir", str(user_dir))


def plan_root() -> Path:
    """The checkout, in which commands run; raises CommandError for an installed package."""
    if not (ROOT / "data-prep").is_dir():
        raise CommandError("experiments need the checkout of norm_plugin, with its data-prep/")
    return ROOT
