"""Composes the runs that a command line asks for, in a child process of ``run`` and ``sweep``.

    python -m norm_plugin compose JSON

JSON holds the options of the command line. What is printed is JSON too: each run as a checked
:class:`~norm_plugin.experiments.spec.RunSpec`. hydra composes the experiment's YAML file with the
overrides; fairseq's own parser and the norms check the flags, before anything is made.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from norm_plugin.checkpoints.user_dirs import import_user_dir
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.experiment import (
    Experiment,
    experiment_names,
    facts_in,
    find_experiment,
)
from norm_plugin.experiments.flag_checks import (
    check_number_averaged,
    check_training,
    refuse_kept,
)
from norm_plugin.experiments.gpus import Recipe, for_workers
from norm_plugin.experiments.metrics import AVERAGE, find_metric
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
from norm_plugin.experiments.sources import sources_in_use
from norm_plugin.experiments.spec import ROOT, RunSpec
from norm_plugin.experiments.studies import (
    StudyFile,
    check_study,
    read_study_file,
    read_yaml,
    study_path,
)
from norm_plugin.norms import norm_spec

SUBWORDS = ("subword-nmt", "sentencepiece")
CHOICES = ("norm", "seed", "preset", "recipe", "subword")
"""Overrides that choose the run; the others change its hyper-parameters."""
SHORT = {"placement": "model.norm_placement"}
OF_THE_WHOLE_RUN = {
    "common.seed": "seed=N",
    "model.norm_type": "norm=X",
    "common.user_dir": "--user-dir DIR",
    "checkpoint.save_dir": "--work DIR",
}
"""Keys that more than the training has to know, and how to give them to the whole run."""
SEED = re.compile(r"0|[1-9][0-9]{0,9}")
MOST_SEED = 2**31 - 1  # numpy takes 32 bits, and fairseq adds the number of the epoch


@dataclass(frozen=True)
class Settings:
    """One run, as asked for.

    Attributes:
        overrides: of the hyper-parameters, in hydra's syntax.
        further: flags of ``fairseq-train`` that come after those of the recipe.
        gpus: a number, or "auto".
        elsewhere: the run is not started on this machine, or not at all.
        raw: the folder of the raw corpus; None to download it.
        pretrained: a checkpoint that is fine-tuned; None to train from the start.
    """

    facts: Experiment
    norm: str
    seed: int
    overrides: tuple[str, ...]
    further: tuple[str, ...]
    subword: str
    smoke: bool
    fold: bool
    gpus: str
    change_batch: bool
    srun: bool
    elsewhere: bool
    tensorboard: bool
    work: Path
    results: Path
    raw: Path | None
    pretrained: Path | None
    user_dir: Path | None


def read_settings(args: argparse.Namespace) -> Settings:
    """The settings that the options of ``run`` ask for; raises CommandError for a wrong one."""
    chosen, overrides = split_overrides(args.overrides)
    for name in CHOICES:
        option = getattr(args, name, None)
        if option is not None and chosen.setdefault(name, option) != option:
            raise CommandError(f"{name} is both {chosen[name]} and {option}; name it once")
    facts = find_experiment(args.experiment, chosen.get("preset"), chosen.get("recipe"))
    subword = chosen.get("subword", SUBWORDS[0])
    if subword not in SUBWORDS:
        raise CommandError(f"--subword is {subword}; choose {' or '.join(SUBWORDS)}")
    if facts.words and "subword" in chosen:
        raise CommandError(f"{facts.name} has no subword units; leave --subword out")
    work = ROOT / "work" if args.work is None else from_here(args.work)
    if ":" in str(work):
        raise CommandError(f"--work is {work}; fairseq splits paths at a colon, so choose another")
    return Settings(
        facts=facts,
        norm=chosen.get("norm", "layernorm"),
        seed=read_seed(chosen.get("seed", "1")),
        overrides=tuple(overrides),
        further=tuple(args.further),
        subword=subword,
        smoke=args.smoke,
        fold=args.fold_norms,
        gpus=getattr(args, "gpus", "auto"),
        change_batch=getattr(args, "change_batch", False),
        srun=getattr(args, "srun", False),
        elsewhere=args.dry_run or getattr(args, "srun", False) or _by_slurm(args),
        tensorboard=args.tensorboard,
        work=work,
        results=work / "results" if args.results is None else from_here(args.results),
        raw=_raw_folder(args.raw, facts.corpus),
        pretrained=_pretrained(args.pretrained, facts),
        user_dir=_user_dir(args.user_dir),
    )


def _by_slurm(args: argparse.Namespace) -> bool:
    """Whether Slurm starts the runs of a sweep, or the sweep only prints its state."""
    return getattr(args, "launcher", "local") != "local" or getattr(args, "status", False)


def split_overrides(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The choices by name, and the other overrides with the full names of their keys.

    Raises CommandError for a word that hydra cannot read, or a sweep.
    """
    chosen: dict[str, str] = {}
    left = []
    for override in parse_overrides(words):
        if override.is_sweep_override():
            raise CommandError(
                f"{override.input_line} names several values; that is for the command sweep"
            )
        key = override.key_or_group
        if key in CHOICES and not override.is_delete() and not override.is_add():
            chosen[key] = str(override.get_value_element_as_str()).strip("'\"")
        else:
            left.append(_full_name(override))
    return chosen, left


def parse_overrides(words: Sequence[str]) -> list[Override]:
    """What hydra's grammar reads in ``words``; raises CommandError for what it refuses."""
    try:
        return OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:
        raise CommandError(str(error).splitlines()[0]) from error


def _full_name(override: Override) -> str:
    """The override with a dotted key: ``norm_variant=...`` is ``model.norm_variant=...``."""
    line = str(override.input_line)
    key = override.key_or_group
    full = f"model.{key}" if key.startswith("norm_") else SHORT.get(key, key)
    if full in OF_THE_WHOLE_RUN:
        raise CommandError(f"{line}: give {OF_THE_WHOLE_RUN[full]} instead")
    if "." in full:
        return line.replace(key, full, 1)
    raise CommandError(
        f"unknown key {key}; choose from {', '.join([*CHOICES, *SHORT])}, an option of the norm "
        "(norm_eps=...), or a dotted key of the experiment's YAML file (model.dropout=...)"
    )


def read_seed(text: str) -> int:
    """A seed as a number; raises CommandError for another word."""
    if not SEED.fullmatch(text) or int(text) > MOST_SEED:
        raise CommandError(f"--seed is {text}; it must be a whole number from 0 to {MOST_SEED}")
    return int(text)


def from_here(path: str) -> Path:
    """An absolute path; relative ones count from the user's folder. Links stay as they are."""
    return Path(os.getcwd(), path)


def _raw_folder(given: str | None, corpus: str) -> Path | None:
    corpora: Any = os.environ.get("NORM_DATA_DIR")
    if given is not None:
        return from_here(given)
    folder = Path(corpus).stem.replace("_", "-")  # a module's name has no hyphen
    if corpora and from_here(corpora).joinpath(folder).is_dir():
        return from_here(corpora) / folder
    return None


def _pretrained(given: str | None, facts: Experiment) -> Path | None:
    if given is None:
        return None
    if facts.metric != "accuracy":
        raise CommandError(
            f"--pretrained is for classification, and {facts.name} is none; leave it out"
        )
    checkpoint = from_here(given)
    for path in (checkpoint, checkpoint.with_name("dict.txt")):
        if not path.is_file():
            raise CommandError(
                f"--pretrained needs {path}, which is no file; give a checkpoint of "
                "norm_masked_lm, and copy the dict.txt of its data beside it"
            )
    return checkpoint


@cache  # the runs of a sweep share the file, which may have a gigabyte
def digest(path: Path) -> str:
    """The first digits of the SHA-256 of a file: what identifies a pre-trained model."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


def _user_dir(given: str | None) -> Path | None:
    if given is None:
        return None
    folder = from_here(given)
    if not folder.is_dir():
        raise CommandError(f"--user-dir is {given}, which is no folder")
    return folder


def compose_run(settings: Settings) -> RunSpec:
    """Compose and check the hyper-parameters of a run, before anything is made.

    Raises CommandError for an unknown recipe, override or flag, a wrong value, an option that no
    chosen norm has, and a batch that the GPUs cannot share.
    """
    metric = find_metric(settings.facts.metric)
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
        if metric.checkpoint == AVERAGE:
            averaging = averaging_flags(recipe, settings.further)
            check_number_averaged(training, averaging)
        plugin = settings.user_dir or ROOT / "norm_plugin"  # absolute: the user may stand anywhere
        _check_training((*_without_seed(training), "--user-dir", os.path.abspath(plugin)))
    except ValueError as error:
        raise CommandError(str(error)) from error
    subword = "" if settings.subword == SUBWORDS[0] else settings.subword
    evaluation = metric.flags(subword, metric.recipe_flags(recipe, settings.further))
    evaluation += ["--fold-norms"] if settings.fold else []
    data = _data_folder(settings)
    return RunSpec(
        experiment=_experiment_name(settings),
        label=run_label(settings.norm, differs)
        + workers_label(settings.gpus, settings.change_batch, "--cpu" in training),
        seed=settings.seed,
        differs=differs,
        metric=metric.name,
        checkpoint=metric.checkpoint,
        evaluation=(metric.stage, metric.module, tuple(evaluation)),
        item=metric.item,
        digits=metric.digits,
        training=tuple(training),
        identity=tuple(identity),
        averaging=tuple(averaging),
        preparation=_preparation(settings, data),
        data=data,
        work=settings.work,
        results=settings.results,
        user_dir=settings.user_dir,
        sources=sources_in_use(settings.user_dir, training),
        pretrained=settings.pretrained,
        fold=settings.fold,
        srun=settings.srun,
        tensorboard=settings.tensorboard,
    )


def _data_folder(settings: Settings) -> Path:
    subword, pretrained = settings.subword, settings.pretrained
    suffix = "" if subword == SUBWORDS[0] else f"-{subword}"
    suffix += f"-split{settings.seed}" if settings.facts.split_by_seed else ""
    suffix += f"-words-{digest(pretrained.with_name('dict.txt'))}" if pretrained else ""
    return settings.work / "data" / f"{settings.facts.data_name}{suffix}"


def _preparation(settings: Settings, data: Path) -> tuple[str, ...]:
    """The command of data preparation, without the stage."""
    facts = settings.facts
    words = [facts.preparation, "--out", str(data)]
    words += ["--raw", str(settings.raw)] if settings.raw is not None else []
    words += ["--subword", settings.subword] if settings.subword != SUBWORDS[0] else []
    words += ["--merges", str(facts.merges)] if facts.merges is not None else []
    words += ["--split-seed", str(settings.seed)] if facts.split_by_seed else []
    if settings.pretrained is not None:
        words += ["--dictionary", str(settings.pretrained.with_name("dict.txt"))]
    return tuple(words)


def _compose(settings: Settings) -> tuple[Recipe, Recipe, dict[str, Any]]:
    """The hyper-parameters, those of the recipe, and what differs between them."""
    facts = settings.facts
    groups = [f"norm={settings.norm}"]
    groups += [f"recipe={facts.recipe}"] if facts.recipe else []
    groups += [f"size={facts.smoke}"] if settings.smoke else []
    if settings.user_dir is not None:
        import_user_dir(settings.user_dir)
    base = without_defaults(_read_recipe(str(facts.config), *groups), settings.norm)
    overrides = [_norm_option(each, settings.norm, base) for each in settings.overrides]
    recipe = without_defaults(_read_recipe(str(facts.config), *groups, *overrides), settings.norm)
    differs = {**differences(recipe, base), **flag_settings(settings.further)}
    if settings.pretrained is not None:
        differs["pretrained"] = digest(settings.pretrained)
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
    parts = [facts.config.stem, facts.recipe, subword, "smoke" if settings.smoke else ""]
    return "_".join(part for part in parts if part)


def read_runs(args: argparse.Namespace) -> dict[str, Any]:
    """The runs that a command line asks for, as :class:`~norm_plugin.experiments.spec.Composed`.

    Every run is checked. Two that come to the same are one. Raises CommandError that names the
    first wrong one, or for a study that cannot be read.
    """
    launcher = [word for word in args.overrides if word.startswith("hydra.")]
    words = [word for word in args.overrides if word not in launcher]
    study = _study(args.experiment)
    experiment = study.experiment
    arms = [[*study.overrides, *words, *arm] for arm in study.arms]
    runs: dict[Path, tuple[RunSpec, list[str]]] = {}
    for overrides in _by_first_key([split(arm) for arm in arms]):
        one = argparse.Namespace(**{**vars(args), "experiment": experiment, "overrides": overrides})
        try:
            spec = compose_run(read_settings(one))
        except CommandError as error:
            raise CommandError(f"{experiment} {' '.join(overrides)}: {error}") from error
        first, words = runs.setdefault(spec.result, (spec, overrides))
        if first.training != spec.training:
            raise CommandError(
                f"{experiment} {' '.join(overrides)}: its result would be {spec.result}, which is "
                f"that of {' '.join(words)}; give the two runs different names by norm=X, "
                "seed=N or a setting that differs from the recipe"
            )
    specs = [spec for spec, _ in runs.values()]
    seeds: dict[str, set[int]] = {}
    for spec in specs:
        seeds.setdefault(spec.label, set()).add(spec.seed)
    check_study(study, find_metric(specs[0].metric), seeds)
    return _composed_runs(experiment, list(runs.values()), launcher)


def read_run(args: argparse.Namespace) -> dict[str, Any]:
    """The run that a command line of ``run`` asks for, or one for each norm of the demo."""
    norms = getattr(args, "norms", None) or [args.norm]
    specs = [
        compose_run(read_settings(argparse.Namespace(**{**vars(args), "norm": norm})))
        for norm in norms
    ]
    return _composed_runs(args.experiment, [(spec, []) for spec in specs], [])


def _composed_runs(
    experiment: str, runs: Sequence[tuple[RunSpec, list[str]]], launcher: list[str]
) -> dict[str, Any]:
    return {
        "runs": [spec.to_json() for spec, _ in runs],
        "overrides": [overrides for _, overrides in runs],
        "experiment": experiment,
        "launcher": launcher,
        "gpus": visible_gpus(),
    }


def visible_gpus() -> list[str]:
    """The GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named and count else list(map(str, range(count)))


def main(argv: Sequence[str]) -> int:
    """The command line; prints one line of JSON."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin compose JSON\n\n{__doc__}")
        return 0
    args = argparse.Namespace(**json.loads(argv[0]))
    content = read_runs(args) if hasattr(args, "jobs") else read_run(args)
    print(json.dumps(content))
    return 0


def _study(name: str) -> StudyFile:
    """The study that a name stands for; an experiment is a study of one arm."""
    path = study_path(name)
    if name in experiment_names():
        if path.is_file() and not name.endswith(".yaml"):
            raise CommandError(f"{name} is an experiment too; rename the study {path}")
        return StudyFile(path, name)
    if name.endswith(".yaml") and not path.is_file():
        raise CommandError(f"no experiment or study {path}: there is no such file")
    if not path.is_file():
        studies = [file.stem for file in sorted(path.parent.glob("*.yaml"))]
        names = ", ".join([*experiment_names(), *studies])
        raise CommandError(
            f"no experiment or study {name}; choose from {names}, or give the path of a file "
            "NAME.yaml"
        )
    if facts_in(read_yaml(path)) is not None:
        return StudyFile(path, str(path))  # the YAML file of an experiment
    return read_study_file(path)


def split(words: Sequence[str]) -> list[list[str]]:
    """The product of the values of overrides, in hydra's syntax."""
    return [list(run) for run in product(*map(_values, parse_overrides(words)))]


def _values(override: Override) -> list[str]:
    """The overrides of one value each that an override with several values stands for."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={text}" for text in override.sweep_string_iterator()]


def _by_first_key(arms: Sequence[Sequence[list[str]]]) -> list[list[str]]:
    """The runs of all arms, those with the first value of the first override first.

    With ``seed=1,2,3`` first, a sweep that is stopped early has whole seeds.
    """
    runs = [run for arm in arms for run in arm]
    firsts = list(dict.fromkeys(run[0] for run in runs if run))
    return sorted(runs, key=lambda run: firsts.index(run[0]) if run else 0)
