"""Composes the runs of a command line, in a child process of ``run`` and ``sweep``.

    python -m norm_plugin compose JSON

JSON holds the options of the command line. The output is JSON too: each run as a checked
:class:`~norm_lab.experiments.spec.RunSpec`. hydra composes the experiment's YAML file with the
overrides; fairseq's parser and the norms check the flags before any file is written.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import norm_plugin
from norm_lab.experiments.metrics import find_metric
from norm_lab.experiments.recipes import (
    AUTO,
    Recipe,
    averaging_flags,
    check_no_code,
    differences,
    for_workers,
    last_values,
    read_recipe,
    training_flags,
    without_defaults,
)
from norm_lab.experiments.spec import (
    AVERAGE,
    CONFIGS,
    LOGGING,
    ROOT,
    RunSpec,
    Sources,
    common_settings,
    flag_settings,
    run_label,
    short_label,
    without_logging,
    without_seed,
)
from norm_lab.experiments.studies import (
    STUDIES,
    StudyFile,
    check_study,
    parse_overrides,
    read_study_file,
    read_yaml,
    split,
    study_path,
)
from norm_plugin.checkpoints.user_dirs import import_user_dir
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import PLACEMENTS, placement_class

SUBWORDS = ("subword-nmt", "sentencepiece")
CHOICES = ("norm", "seed", "preset", "recipe", "subword")
"""Overrides that choose the run; the others change hyperparameters."""
RUN_OPTIONS = {
    "common.seed": "seed=N",
    "model.norm_type": "norm=X",
    "common.user_dir": "--user-dir DIR",
    "checkpoint.save_dir": "--work DIR",
}
"""Settings that do not concern the training alone, and the option of the run that sets them."""
SEED = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_SEED = 2**31 - 1  # numpy takes 32 bits, and fairseq adds the number of the epoch


def main(argv: Sequence[str]) -> int:
    """The command line; prints one line of JSON."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin compose JSON\n\n{__doc__}")
        return 0
    print(json.dumps(read_runs(argparse.Namespace(**json.loads(argv[0])))))
    return 0


# --- the runs of a grid -------------------------------------------------------------------------


def read_runs(args: argparse.Namespace) -> dict[str, Any]:
    """The runs of a command line: the fields of :class:`~norm_lab.experiments.sweep.Composed`.

    Identical runs are merged. Every run is checked; CommandError names the first wrong one.
    """
    launcher = [override for override in args.overrides if override.startswith("hydra.")]
    own = [override for override in args.overrides if override not in launcher]
    study = find_study(args.experiment)
    experiment = study.experiment
    arms = [[*study.overrides, *own, *arm] for arm in study.arms]
    given = getattr(args, "arms", None)  # from tune: the overrides of each run, in order
    grid = given or _by_first_key([overrides for arm in arms for overrides in split(arm)])
    if len(grid) > 1 and not args.grid:
        raise CommandError(
            f"{args.experiment} {' '.join(own)}: these are several runs; use norm-plugin sweep"
        )
    runs: dict[Path, tuple[RunSpec, list[str]]] = {}
    for overrides in grid:
        command = f"{experiment} {' '.join(overrides)}"
        try:
            spec = compose_run(args, experiment, overrides)
        except CommandError as error:
            if not args.grid:
                raise
            raise CommandError(f"{command}: {error}") from error
        first, of_first = runs.setdefault(spec.result, (spec, overrides))
        if first.training != spec.training:
            raise CommandError(
                f"{command}: its result would be {spec.result}, which is that of "
                f"{' '.join(of_first)}; give the two runs different names by norm=X, seed=N or a "
                "setting that differs from the recipe"
            )
    if given is None:
        common = common_settings({spec.label: spec.differs for spec, _ in runs.values()}.values())
        seeds: dict[str, set[int]] = {}
        for spec, _ in runs.values():
            for arm in {spec.label, short_label(spec.label, spec.differs, common)}:
                seeds.setdefault(arm, set()).add(spec.seed)
        check_study(study, find_metric(next(iter(runs.values()))[0].metric), seeds)
    return {
        "runs": [spec.to_json() for spec, _ in runs.values()],
        "overrides": [overrides for _, overrides in runs.values()],
        "experiment": experiment,
        "launcher": launcher,
        "gpus": visible_gpus(),
    }


def find_study(name: str) -> StudyFile:
    """The study with this name or path; an experiment is a study of one arm."""
    path = study_path(name)
    if name in experiment_names():
        return StudyFile(path, name)
    if not path.is_file():
        names = [*experiment_names(), *sorted(file.stem for file in STUDIES.glob("*.yaml"))]
        raise CommandError(
            f"no experiment or study {name}: there is no such file; choose from "
            f"{', '.join(names)}, or give the path of a file NAME.yaml"
        )
    if settings_in(read_yaml(path)) is not None:
        return StudyFile(path, str(path))  # the YAML file of an experiment
    return read_study_file(path)


def _by_first_key(runs: Sequence[list[str]]) -> list[list[str]]:
    """The runs in the order of the values of the first override.

    With ``seed=1,2,3`` first, a sweep that is stopped early has complete seeds.
    """
    firsts = list(dict.fromkeys(run[0] for run in runs if run))
    return sorted(runs, key=lambda run: firsts.index(run[0]) if run else 0)


def visible_gpus() -> list[str]:
    """The GPUs of this machine, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named and count else list(map(str, range(count)))


# --- one run ------------------------------------------------------------------------------------


def compose_run(args: argparse.Namespace, name: str, overrides: Sequence[str]) -> RunSpec:
    """Compose and check one run.

    Args:
        args: the options that all runs of a command line share.
        name: the name of the experiment, or the path of its YAML file.
        overrides: the overrides of this run, each with one value.

    Raises:
        CommandError: an unknown experiment, preset, override or flag, a wrong value, an option that
            no chosen norm has, or a batch that the GPUs cannot share.
    """
    choices, overrides = split_choices(overrides)
    experiment = find_experiment(name, choices.get("preset"), choices.get("recipe"))
    metric = find_metric(experiment.metric)
    norm, seed = choices.get("norm", "layernorm"), read_seed(choices.get("seed", "1"))
    subword = _subword(experiment, choices)
    work = ROOT / "work" if args.work is None else absolute_path(args.work)
    if ":" in str(work):
        raise CommandError(f"--work is {work}; fairseq splits paths at a colon, so choose another")
    pretrained = _pretrained(args.pretrained, experiment)
    user_dir = None if args.user_dir is None else absolute_path(args.user_dir)
    import_user_dir(user_dir)

    base, recipe = _hyperparameters(experiment, norm, args.smoke, overrides)
    differs = {**differences(recipe, base), **flag_settings(args.extra_flags)}
    if pretrained is not None:
        differs["pretrained"] = digest(pretrained)
    recipe["common"]["seed"] = seed
    if user_dir is not None:
        recipe["common"]["user_dir"] = str(user_dir)
    trained = for_workers(
        recipe,
        args.gpus,
        args.extra_flags,
        elsewhere=args.dry_run or args.srun or args.launcher != "local" or args.status,
        change_batch=args.change_batch,
        srun=args.srun,
    )
    if recipe["common"].get("log_interval") == base["common"].get("log_interval"):
        trained["common"] = {**trained["common"], **experiment.logging}
    training = [*training_flags(trained), *args.extra_flags]
    logging_of_base = {key: base["common"].get(key) for key in LOGGING}
    unlogged = {**trained, "common": {**trained["common"], **logging_of_base}}
    averaging = averaging_flags(recipe, args.extra_flags) if metric.checkpoint == AVERAGE else []
    evaluation = metric.flags(subword, metric.recipe_flags(recipe, args.extra_flags))
    check_extra_flags(args.extra_flags)
    # before fairseq parses them, which evaluates some
    check_no_code([*training, *evaluation], None if user_dir is None else str(user_dir))
    check_number_averaged(training, averaging)
    plugin = user_dir or ROOT / "norm_plugin"
    check_training((*without_seed(training), "--user-dir", os.path.abspath(plugin)))

    raw = _raw_folder(args.raw, experiment)
    data, preparation = prepared_data(work, experiment, subword, seed, raw, pretrained)
    parts = (experiment.config.stem, experiment.recipe, subword, "smoke" if args.smoke else "")
    return RunSpec(
        experiment="_".join(filter(None, parts)),
        label=run_label(norm, differs) + _workers_label(args, "--cpu" in training),
        seed=seed,
        differs=differs,
        metric=metric.name,
        checkpoint=metric.checkpoint,
        evaluation=(
            metric.stage,
            metric.module,
            (*evaluation, *(["--fold-norms"] if args.fold_norms else [])),
        ),
        item=metric.item,
        digits=metric.digits,
        training=tuple(training),
        identity=(*training_flags(unlogged), *without_logging(args.extra_flags)),
        averaging=tuple(averaging),
        preparation=preparation,
        data=data,
        work=work,
        results=work / "results" if args.results is None else absolute_path(args.results),
        user_dir=user_dir,
        sources=sources_in_use(user_dir, training),
        pretrained=pretrained,
        fold=args.fold_norms,
        srun=args.srun,
        tensorboard=args.tensorboard,
    )


def split_choices(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of CHOICES by name, and the other overrides with the full names of their keys."""
    choices: dict[str, str] = {}
    others = []
    for override in parse_overrides(overrides):
        line, key = str(override.input_line), override.key_or_group
        if key in CHOICES and not override.is_delete() and not override.is_add():
            choices[key] = str(override.get_value_element_as_str()).strip("'\"")
            continue
        full = "model.norm_placement" if key == "placement" else key
        full = f"model.{key}" if key.startswith("norm_") else full
        if full in RUN_OPTIONS:
            raise CommandError(f"{line}: give {RUN_OPTIONS[full]} instead")
        others.append(line.replace(key, full, 1))
    return choices, others


def read_seed(text: str) -> int:
    """A seed as a number; CommandError if it is none."""
    if not SEED.fullmatch(text) or int(text) > MAX_SEED:
        raise CommandError(f"seed is {text}; it must be a whole number from 0 to {MAX_SEED}")
    return int(text)


def absolute_path(path: str) -> Path:
    """An absolute path, without resolving links."""
    return Path(os.getcwd(), path)


def _subword(experiment: Experiment, choices: dict[str, str]) -> str:
    """The subword method; empty for the default, the first of SUBWORDS."""
    subword = choices.get("subword", SUBWORDS[0])
    if subword not in SUBWORDS:
        raise CommandError(f"subword is {subword}; choose {' or '.join(SUBWORDS)}")
    if experiment.words and "subword" in choices:
        raise CommandError(f"{experiment.name} has no subword units; leave subword out")
    return "" if subword == SUBWORDS[0] else subword


def _pretrained(path: str | None, experiment: Experiment) -> Path | None:
    if path is None:
        return None
    if experiment.metric != "accuracy":
        raise CommandError(
            f"--pretrained is for classification, and {experiment.name} is another task; "
            "leave it out"
        )
    checkpoint = absolute_path(path)
    for file in (checkpoint, checkpoint.with_name("dict.txt")):
        if not file.is_file():
            raise CommandError(
                f"--pretrained needs {file}, which does not exist; give a checkpoint of "
                "norm_masked_lm, and copy the dict.txt of its data beside it"
            )
    return checkpoint


@cache  # the runs of a sweep share the file, which may be large
def digest(path: Path) -> str:
    """The first digits of the SHA-256 of a file, which identify a pre-trained model."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


def _workers_label(args: argparse.Namespace, on_cpu: bool) -> str:
    """The suffix of the label of a run on several workers: ``-8gpus``, ``-2workers-batch``.

    It is a run of its own: each worker has its own batch statistics, and the batch may differ.
    """
    if args.gpus in (AUTO, "1"):
        return ""
    kind = "workers" if on_cpu else "gpus"
    return f"-{args.gpus}{kind}" + ("-batch" if args.change_batch else "")


# --- the prepared data --------------------------------------------------------------------------


def prepared_data(
    work: Path,
    experiment: Experiment,
    subword: str,
    seed: int,
    raw: Path | None,
    pretrained: Path | None,
) -> tuple[Path, tuple[str, ...]]:
    """The folder of the prepared corpus, and the command that prepares it."""
    name, options = experiment.data_name, []
    if raw is not None:
        options += ["--raw", str(raw)]
    if subword:
        name += f"-{subword}"
        options += ["--subword", subword]
    if experiment.merges is not None:  # data_name contains them
        options += ["--merges", str(experiment.merges)]
    if experiment.split_by_seed:
        name += f"-split{seed}"
        options += ["--split-seed", str(seed)]
    if pretrained is not None:
        dictionary = pretrained.with_name("dict.txt")
        name += f"-words-{digest(dictionary)}"
        options += ["--dictionary", str(dictionary)]
    folder = work / "data" / name
    return folder, (experiment.preparation, "--out", str(folder), *options)


def _raw_folder(path: str | None, experiment: Experiment) -> Path | None:
    """The folder of the raw corpus; None to download it."""
    if path is not None:
        return absolute_path(path)
    corpora = os.environ.get("NORM_DATA_DIR")
    corpus = Path(experiment.corpus).stem.replace("_", "-")
    name = experiment.raw or corpus
    folder = absolute_path(corpora) / name if corpora else None
    return folder if folder is not None and folder.is_dir() else None


# --- hyperparameters and their check ------------------------------------------------------------


def _hyperparameters(
    experiment: Experiment, norm: str, smoke: bool, overrides: Sequence[str]
) -> tuple[Recipe, Recipe]:
    """The hyperparameters of the recipe without and with the overrides."""
    groups = [f"norm={norm}"]
    groups += [f"recipe={experiment.recipe}"] if experiment.recipe else []
    groups += [f"size={experiment.smoke}"] if smoke else []
    base = read_recipe(str(experiment.config), groups)
    # A recipe may lack the options of the norm, and a user's own norm has no file in configs/norm/.
    # With a plus, hydra adds a new key.
    added = [
        f"+{each}" if each.startswith("model.norm_") and _key(each) not in base["model"] else each
        for each in overrides
    ]
    recipe = read_recipe(str(experiment.config), [*groups, *added])
    return without_defaults(base, norm), without_defaults(recipe, norm)


def _key(override: str) -> str:
    return override.partition("=")[0].removeprefix("model.")


def check_extra_flags(flags: Sequence[str]) -> None:
    """Raise CommandError for a flag after ``--`` that an option of the run must set instead."""
    refused = {
        "--" + key.rpartition(".")[2].replace("_", "-"): f"give {instead} before the --"
        for key, instead in RUN_OPTIONS.items()
    }
    refused |= dict.fromkeys(("-h", "--help"), "see `fairseq-train --help`")
    for argument in flags:
        flag = argument.partition("=")[0]
        if flag in refused:
            raise CommandError(f"{flag} cannot come after the --: {refused[flag]}")


def check_number_averaged(flags: Sequence[str], averaging: Sequence[str]) -> None:
    """Raise CommandError if a training makes fewer checkpoints than are averaged."""
    if not averaging:
        return
    names = ("max_epoch", "max_update", "save_interval_updates")
    epochs, updates, interval = last_values(flags, dict.fromkeys(names, 0))
    kind, count = averaging
    if kind == "--last-epochs":
        end, length, checkpoints = "--max-epoch", epochs, epochs
    else:
        end, length, checkpoints = "--max-update", updates, updates // max(interval, 1)
    if length > 0 and checkpoints < int(count):
        raise CommandError(
            f"{end} {length} makes {checkpoints} checkpoints and {count} are averaged: train "
            f"longer, or keep fewer by {kind.replace('last', 'keep')}"
        )


@lru_cache
def check_training(flags: tuple[str, ...]) -> None:
    """Parse the flags of ``fairseq-train`` and build each norm of the model, without data.

    Raises:
        CommandError: an unknown flag or choice, a value of the wrong type, an option that no chosen
            norm has or that its norm refuses, flags that contradict each other.
    """
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import norm_plugin.models  # noqa: F401  registers the architectures that the flags name

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # of what it imports
    parser = options.get_training_parser()
    parser.error = _refuse
    try:
        args = options.parse_args_and_arch(parser, ["DATA", *flags])
        convert_namespace_to_omegaconf(args)
        _check_norms(args)
    except (ImportError, HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        raise CommandError(" ".join(str(error).split())) from error
    if args.lr_scheduler == "inverse_sqrt" and not args.warmup_updates:
        raise CommandError(
            "--lr-scheduler inverse_sqrt divides by --warmup-updates, which is 0: for no warm-up "
            "give --warmup-init-lr the value of --lr, or choose --lr-scheduler fixed"
        )


def _refuse(message: str) -> NoReturn:
    raise CommandError(f"fairseq-train: {message}")


def _check_norms(args: Any) -> None:
    """Build the norm of every site, which checks its options."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.plan import make_plan

    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, NormModel):
        return  # fairseq's or the user's model
    for choice in make_plan(args, model.sides).sites:
        choice.build(getattr(args, f"{choice.site.side}_embed_dim"))


# --- the YAML file of an experiment --------------------------------------------------------------
#
# fairseq's schema allows no keys of ours, so ``experiment`` is under ``hydra.runtime.choices``,
# which hydra does not read. corpus and metric are required:
#
#     name: multi30k          # the argument of `norm-plugin run` (default: the name of the file)
#     corpus: multi30k        # a file of data-prep/, or a path relative to the YAML file
#     metric: bleu            # a file of norm_lab/experiments/metrics/
#     raw: multi30k           # the folder in NORM_DATA_DIR (default: the name of the corpus)
#     smoke: smoke            # the file of configs/size/ that --smoke adds
#     words: true             # tokens are words or characters: no subword units
#     split_by_seed: true     # each seed has its own random split of the corpus
#     merges: 10000           # BPE merges (default: those of the corpus)
#     recipe: adanorm         # the default of the group recipe
#     recipes: {powernorm: {merges: 37000}}   # keys of this list that a recipe changes
#     log_interval: 5         # updates between two points of the training curve (default: 50 or
#                             # more); it is here because it does not identify a run
#     preset: cpu             # the value of `preset=` that selects this file
#     default: true           # the file without `preset=`, if several have the same name
#     presets: {short: {recipe: short}}   # more presets of this file

KEY = "experiment"
Settings = dict[str, Any]
"""The content of KEY."""


@dataclass(frozen=True)
class Experiment:
    """An experiment: the keys of its YAML file, see above, and ``config``, the file itself."""

    name: str
    config: Path
    corpus: str
    metric: str
    raw: str | None = None
    smoke: str = "smoke"
    words: bool = False
    split_by_seed: bool = False
    merges: int | None = None
    recipe: str | None = None
    recipes: Settings = field(default_factory=dict)
    log_interval: int | None = None

    @property
    def logging(self) -> Settings:
        """Settings of fairseq's group ``common`` that affect logging only."""
        return {} if self.log_interval is None else {"log_interval": self.log_interval}

    @property
    def data_name(self) -> str:
        """The name of the prepared data, without the subword method."""
        name = Path(self.corpus).stem
        return name if self.merges is None else f"{name}-{self.merges}"

    @property
    def preparation(self) -> str:
        """The program that prepares the corpus."""
        if self.corpus.endswith(".py"):
            return str(self.config.parent / self.corpus)
        return f"data-prep/{self.corpus}.py"


def experiment_names() -> list[str]:
    """The names of all experiments in ``configs/``."""
    return sorted({settings["name"] for settings in _files().values()})


def experiment_metrics() -> dict[str, str]:
    """The metric of each experiment in ``configs/``, by the name of its file."""
    return {path.stem: settings["metric"] for path, settings in _files().items()}


def find_experiment(name: str, preset: str | None = None, recipe: str | None = None) -> Experiment:
    """An experiment by its name or the path of its YAML file, with a preset and a recipe.

    Raises CommandError for an unknown experiment or preset, and for a wrong key. The recipe is
    checked when the hyperparameters are composed; here it changes what ``recipes`` says of it.
    """
    if name.endswith(".yaml"):
        files = _users_file(Path(os.path.abspath(name)))
    else:
        files = {path: settings for path, settings in _files().items() if settings["name"] == name}
    if not files:
        raise CommandError(
            f"no experiment {name}; choose from {', '.join(experiment_names())}, or give the path "
            "of a file NAME.yaml"
        )
    presets: dict[str | None, Experiment] = {}
    for path, settings in files.items():
        if len(files) == 1 or settings.get("default"):
            presets[None] = _experiment(path, settings)
        if "preset" in settings:
            presets[settings["preset"]] = _experiment(path, settings)
        for key, more in settings.get("presets", {}).items():
            presets[key] = _experiment(path, settings | more)
    if preset not in presets:
        known = " or ".join(filter(None, presets)) or "none, as it has no presets"
        raise CommandError(f"preset of {name} is {preset}; choose {known}")
    found = presets[preset]
    chosen = found.recipe if recipe is None else recipe
    return replace(found, recipe=chosen, **found.recipes.get(chosen or "", {}))


def _experiment(path: Path, settings: Settings) -> Experiment:
    """An experiment from the settings of its file."""
    settings = {
        key: settings[key] for key in settings if key not in ("preset", "presets", "default")
    }
    wrong = set(settings) - {each.name for each in fields(Experiment)}
    for changed in settings.get("recipes", {}).values():
        wrong |= set(changed) - {each.name for each in fields(Experiment)}
    if wrong or not {"corpus", "metric"} <= set(settings):
        raise CommandError(
            f"{path}: {KEY} needs corpus and metric, and has no key {', '.join(wrong)}"
        )
    return Experiment(config=path, **settings)


def _users_file(path: Path) -> dict[Path, Settings]:
    """The settings of a user's own YAML file.

    Raises CommandError if ``configs/`` or ``data-prep/`` has a file of the same name.
    """
    settings = _settings(path)
    for own, folder in ((path, "configs"), (path.parent / settings.get("corpus", ""), "data-prep")):
        other = CONFIGS.parent / folder / own.name
        if own.suffix and other.is_file() and not other.samefile(own):
            raise CommandError(
                f"{own} has the name of a file of {folder}/, and its data and results would be "
                "mixed with those of that one; rename it"
            )
    return {path: settings}


@cache
def _files() -> dict[Path, Settings]:
    """The YAML files of experiments in ``configs/``, and their settings."""
    files = {path: _settings(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    return {path: settings for path, settings in files.items() if "corpus" in settings}


def _settings(path: Path) -> Settings:
    if not path.is_file():
        raise CommandError(f"no experiment {path}: there is no such file")
    settings = settings_in(OmegaConf.to_container(OmegaConf.load(path)))
    return {"name": path.stem, **(settings or {})}


def settings_in(content: Any) -> Settings | None:
    """The settings under ``experiment`` in the content of a YAML file; None if it has none."""
    for key in ("hydra", "runtime", "choices", KEY):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else None


# --- the files of a user dir that a run depends on -----------------------------------------------
#
# If these files change, it is another run. Other files of the folder, such as that of a second
# norm, may change. A run depends on
#
# - the files that define the norms, placements, models, tasks and other components that its flags
#   name, and the files of the user dir that those import or name in turn;
# - the imported files with side effects, such as replacing a function of another package, since
#   these may affect any run.

DIGITS = 16  # of a SHA-256, in hexadecimal


def sources_in_use(user_dir: Path | None, flags: Sequence[str]) -> Sources:
    """The digests of the files of ``user_dir`` that a training with ``flags`` depends on."""
    if user_dir is None or user_dir.name == norm_plugin.__name__:
        return {}
    folder = Path(os.path.abspath(user_dir))
    names = {part for flag in flags for part in (flag, flag.partition("=")[2])}
    used = {path for path in _imported_files(folder) if _has_side_effects(path)}
    used |= _defining(names, folder)
    waiting = list(used)
    while waiting:
        tree = ast.parse(waiting[-1].read_bytes())
        new = set(_imports(tree, waiting.pop(), folder)) | _defining(
            _string_constants(tree), folder
        )
        waiting += new - used
        used |= new
    return {str(path.relative_to(folder.parent)): _digest(path) for path in sorted(used)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def _defining(names: Iterable[str], folder: Path) -> set[Path]:
    """The files in ``folder`` that define a component registered under one of ``names``."""
    modules = (sys.modules.get(each.__module__) for each in _components(names))
    paths = {Path(name) for module in modules if (name := getattr(module, "__file__", None))}
    return {path for path in paths if path.is_relative_to(folder)}


def _components(names: Iterable[str]) -> Iterator[Any]:
    """The classes and functions that are registered under one of ``names``."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    registries = [ARCH_MODEL_REGISTRY, ARCH_CONFIG_REGISTRY, TASK_REGISTRY]
    registries += [each["registry"] for each in REGISTRIES.values()]
    for name in names:
        yield from (registry[name] for registry in registries if name in registry)
        if name in NORM_TYPES:
            yield norm_spec(name).cls
        if name in PLACEMENTS:
            yield placement_class(name)


def _imported_files(folder: Path) -> list[Path]:
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    start = f"{folder}{os.sep}"
    return [Path(name) for name in names if name and name.startswith(start)]


def _has_side_effects(path: Path) -> bool:
    """Whether importing a file does more than import others and define names."""
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Assign) and all(map(_is_name, statement.targets)):
            continue
        if not isinstance(statement, defines):
            return True
    return False


def _is_name(target: ast.expr) -> bool:
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(element, ast.Name) for element in elements)


def _string_constants(tree: ast.Module) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """The files in ``folder`` that the file ``path`` imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.relative_to(folder.parent).parts
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            # a name is a submodule, or is defined in the module itself
            modules = [f"{module}.{alias.name}" for alias in node.names]
            names = [each if _module_file(each, folder) else module for each in modules]
        else:
            continue
        yield from filter(None, (_module_file(name, folder) for name in names))


def _module_file(name: str, folder: Path) -> Path | None:
    """The file of a module of the user dir, by its full name; None for any other module."""
    stem = folder.parent.joinpath(*name.split("."))
    if not stem.is_relative_to(folder):
        return None
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in files if path.is_file()), None)
