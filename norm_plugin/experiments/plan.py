"""The plan of a run: its name, its folders, and its hyper-parameters as flags."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from norm_plugin.checkpoints.user_dirs import import_user_dir
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.flag_checks import (
    check_number_averaged,
    check_training,
    refuse_kept,
)
from norm_plugin.experiments.gpus import Recipe, for_workers
from norm_plugin.experiments.metrics import AVERAGE, Metric, find_metric
from norm_plugin.experiments.naming import (
    LOGGING,
    differences,
    flag_settings,
    run_label,
    without_defaults,
    without_logging,
    workers_label,
)
from norm_plugin.experiments.recipes import (
    averaging_flags,
    read_recipe,
    training_flags,
)
from norm_plugin.experiments.results import result_name
from norm_plugin.experiments.settings import ROOT, SUBWORDS, Settings
from norm_plugin.experiments.sources import Sources, sources_in_use
from norm_plugin.norms import norm_spec


@dataclass(frozen=True)
class Plan:
    """One run, ready to be executed.

    Attributes:
        experiment: the name of the folder of its results, ``multi30k_cpu``.
        label: the norm and what differs from the recipe, ``powernorm-released``.
        differs: the settings that differ from the recipe.
        folder: of checkpoints, translations, logs and stamps.
        data: of the prepared corpus.
        metric: how the trained model is evaluated and scored.
        averaging: of the checkpoints; empty where the metric evaluates the best one.
        generation: the flags of the evaluation that the recipe gives.
        identity: ``training`` with the recipe's own flags of logging, which identify no run.
        sources: the digests of the files of the user dir that the training rests on.
        result: the file with its scores.
    """

    settings: Settings
    experiment: str
    label: str
    differs: dict[str, Any]
    training: tuple[str, ...]
    averaging: tuple[str, ...]
    generation: tuple[str, ...]
    identity: tuple[str, ...]
    sources: Sources

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
    def metric(self) -> Metric:
        """See the class."""
        return find_metric(self.settings.facts.metric)

    @property
    def evaluated(self) -> Path:
        """The checkpoint that is evaluated."""
        if self.metric.checkpoint == AVERAGE:
            return self.folder / "averaged.pt"
        return self.checkpoints / "checkpoint_best.pt"

    @property
    def data(self) -> Path:
        """See the class."""
        subword = self.settings.subword
        suffix = "" if subword == SUBWORDS[0] else f"-{subword}"
        suffix += f"-split{self.settings.seed}" if self.settings.facts.split_by_seed else ""
        pretrained = self.settings.pretrained
        suffix += f"-words-{pretrained.dictionary_digest}" if pretrained else ""
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
        recipe, base, differs = _compose(settings)
        trained = for_workers(
            recipe,
            settings.gpus,
            settings.further,
            elsewhere=settings.elsewhere,
            change_batch=settings.change_batch,
            srun=settings.srun,
        )
        training = [*training_flags(trained), *settings.further]
        shown = {key: base["common"].get(key) for key in LOGGING}
        trained["common"] = {**trained["common"], **shown}
        identity = [*training_flags(trained), *without_logging(settings.further)]
        averaging = []
        refuse_kept(settings.further)
        if find_metric(settings.facts.metric).checkpoint == AVERAGE:
            averaging = averaging_flags(recipe, settings.further)
            check_number_averaged(training, averaging)
        plugin = settings.user_dir or ROOT / "norm_plugin"  # absolute: the user may stand anywhere
        _check_training((*_without_seed(training), "--user-dir", os.path.abspath(plugin)))
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
        tuple(find_metric(settings.facts.metric).recipe_flags(recipe, settings.further)),
        tuple(identity),
        sources_in_use(settings.user_dir, training),
    )


def _compose(settings: Settings) -> tuple[Recipe, Recipe, dict[str, Any]]:
    """The hyper-parameters, those of the recipe, and what differs between them."""
    facts = settings.facts
    groups = [f"norm={settings.norm}"]
    groups += [f"recipe={facts.recipe}"] if facts.recipe else []
    groups += [f"size={facts.smoke}"] if settings.smoke else []
    if settings.user_dir is not None:
        import_user_dir(settings.user_dir)
    base = without_defaults(_read_recipe(facts.config, *groups), settings.norm)
    overrides = [_norm_option(each, settings.norm, base) for each in settings.overrides]
    recipe = without_defaults(_read_recipe(facts.config, *groups, *overrides), settings.norm)
    differs = {**differences(recipe, base), **flag_settings(settings.further)}
    if settings.pretrained is not None:
        differs["pretrained"] = settings.pretrained.digest
    recipe["common"]["seed"] = settings.seed
    if settings.user_dir is not None:
        recipe["common"]["user_dir"] = str(settings.user_dir)
    return recipe, base, differs


# The runs of a grid differ in little more than their seed, and each of these takes a good part of
# a second.
_check_training = cache(check_training)


@cache
def _composed(config: str, *overrides: str) -> Recipe:
    return read_recipe(config, overrides)


def _read_recipe(config: str, *overrides: str) -> Recipe:
    """A composed recipe of the caller's own."""
    return copy.deepcopy(_composed(config, *overrides))


def _without_seed(flags: Sequence[str]) -> list[str]:
    """Flags without the recipe's seed, which was checked when it was read."""
    place = flags.index("--seed") if "--seed" in flags else len(flags)
    return [*flags[:place], *flags[place + 2 :]]


def _norm_option(override: str, norm: str, base: Recipe) -> str:
    """The override of an option of the norm, checked; hydra would only say that it cannot.

    Not every recipe lists the flags of all norms, and a norm of the user's own has no file in
    ``configs/norm/``: these are added.
    """
    from norm_plugin.models.flags import CHOICES, VALUES  # it imports fairseq

    key = override.partition("=")[0].removeprefix("model.")
    if not override.startswith("model.norm_") or key in base["model"]:
        return override
    options = [f"norm_{option.name}" for option in norm_spec(norm).options]
    if key in (*options, *CHOICES, *VALUES):
        return f"+{override}"
    raise ValueError(f"{norm} has no option {key}; it has {', '.join(options) or 'none'}")


def _experiment_name(settings: Settings) -> str:
    facts = settings.facts
    subword = "" if settings.subword == SUBWORDS[0] else settings.subword
    parts = [facts.config_name, facts.recipe, subword, "smoke" if settings.smoke else ""]
    return "_".join(part for part in parts if part)


def plan_root() -> Path:
    """The checkout, in which commands run; raises CommandError for an installed package."""
    if not (ROOT / "data-prep").is_dir():
        raise CommandError("experiments need the checkout of norm_plugin, with its data-prep/")
    return ROOT
