"""Compose the runs of a command line.

hydra composes the experiment's YAML file with the overrides; fairseq's parser and the norms check
the flags before any file is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from norm_lab.config.checks import (
    check_composed,
    check_hyperparameters,
    check_number_averaged,
    check_training,
)
from norm_lab.config.configuration import (
    check_no_code,
    differences,
    for_workers,
    in_one_form,
    read_configuration,
    without_defaults,
)
from norm_lab.config.experiments import (
    Experiment,
    digest,
    find_experiment,
    is_experiment,
    prepared_data,
    raw_folder,
    settings_in,
)
from norm_lab.config.extra_flags import (
    RUN_OPTIONS,
    check_extra_flags,
    check_given_once,
    settings_of_flags,
)
from norm_lab.config.names import CHOICES, check_experiment, read_seed
from norm_lab.config.options import Request
from norm_lab.config.spec import RunSpec
from norm_lab.config.studies import (
    StudyFile,
    check_study,
    find_arm,
    parse_overrides,
    read_study_file,
    read_yaml,
    split,
    study_path,
)
from norm_lab.config.user_dir import sources_in_use
from norm_lab.metrics import find_metric
from norm_lab.metrics.base import AVERAGE
from norm_lab.paths import PLUGIN, WORK
from norm_lab.run.flags import LOGGING, Configuration, training_flags
from norm_lab.run.record import Arm, common_changes
from norm_plugin.io.command_line import CommandError, usage_errors
from norm_plugin.io.user_dirs import import_user_dir

SUBWORDS = ("subword-nmt", "sentencepiece")
SEED = 1
"""The default seed."""
Composed = Callable[[int, Sequence[str]], RunSpec]
"""A composed arm, which returns its run with a seed and the overrides that request it."""
Arms = dict[tuple[str, ...], Composed]
"""The composed arms, by what the runs of an arm share: all but the seed."""


@usage_errors()
def compose_runs(request: Request) -> list[RunSpec]:
    """Return the runs of a request, composed. Identical runs are merged.

    Every run is checked; CommandError names the first invalid one.
    """
    study, own = find_study(request.experiment), request.lines
    grid = request.runs or _runs_of_study(study, own)
    if len(grid) > 1 and not request.grid:
        raise CommandError(
            f"{request.experiment} {' '.join(own)} is more than one run; use norm-plugin sweep"
        )
    runs: dict[Path, RunSpec] = {}
    arms: Arms = {}
    for overrides in grid:
        try:
            spec = compose_run(request, study.experiment, overrides, arms)
        except CommandError as error:
            if not request.grid:
                raise
            raise CommandError(f"{' '.join((study.experiment, *overrides))}: {error}") from error
        first = runs.setdefault(spec.result, spec)
        if first.settings != spec.settings:
            raise CommandError(
                f"{study.experiment} {' '.join(overrides)}: its result would be {spec.result}, "
                f"which is also that of {' '.join(first.overrides)}; give the two runs different "
                "names by norm=X, seed=N or a setting that differs from the experiment's"
            )
    specs = list(runs.values())
    if request.runs is None:
        seeds = _seeds_by_arm(specs)
        check_study(study, find_metric(specs[0].metric), seeds)
        for arm in study.labels:
            find_arm(arm, seeds, f"{study.path}: labels")
    return specs


def _runs_of_study(study: StudyFile, own: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run of a study: all combinations of values, for each arm.

    They are in the order of the values of the first override: if ``seed=1,2,3`` comes first, a
    sweep that is stopped early has complete seeds.

    Raises:
        CommandError: an override of the command line is of a key that an arm sets, which would win.
    """
    given = {each.key_or_group: each.input_line for each in parse_overrides(own)}
    for arm in study.arms:
        for each in parse_overrides(arm):
            if each.key_or_group in given:
                raise CommandError(
                    f"{given[each.key_or_group]} has no effect, as an arm of {study.path} sets "
                    f"{each.input_line}; drop it, or copy the study and change its arms"
                )
    runs = [run for arm in study.arms for run in split([*study.overrides, *own, *arm])]
    firsts = list(dict.fromkeys(run[0] for run in runs if run))
    return sorted(runs, key=lambda run: firsts.index(run[0]) if run else 0)


def _seeds_by_arm(specs: Sequence[RunSpec]) -> dict[str, set[int]]:
    """Return the seeds of each arm, by its full label and by its label without shared settings."""
    common = common_changes({spec.label: spec.arm.changes for spec in specs}.values())
    seeds: dict[str, set[int]] = {}
    for spec in specs:
        for arm in {spec.label, spec.arm.file_name(without=common)}:
            seeds.setdefault(arm, set()).add(spec.seed)
    return seeds


@usage_errors()
def find_study(name: str) -> StudyFile:
    """Return the study with this name or path; an experiment is a study with one arm."""
    path = study_path(name)
    if is_experiment(name):
        return StudyFile(name, path=path)
    check_experiment(name)
    if settings_in(read_yaml(path)) is not None:
        return StudyFile(str(path), path=path)  # the YAML file of an experiment
    return read_study_file(path)


def compose_run(request: Request, name: str, overrides: Sequence[str], arms: Arms) -> RunSpec:
    """Compose and check one run.

    Args:
        request: the options that all runs share.
        name: the name of the experiment, or the path of its YAML file.
        overrides: the overrides of this run, each with one value.
        arms: the arms composed so far, to which that of this run is added.

    Raises:
        CommandError: the experiment, preset, an override or a flag is unknown, a value is wrong, no
            chosen norm has an option, or the GPUs cannot share the batch.
    """
    choices, others = split_choices(overrides)
    seed = read_seed(choices.pop("seed", str(SEED)))
    arm = (*(f"{key}={choices[key]}" for key in sorted(choices)), *others)
    if arm not in arms:
        arms[arm] = _compose_arm(request, name, choices, others)
    return arms[arm](seed, overrides)


def _compose_arm(
    request: Request, name: str, choices: dict[str, str], others: Sequence[str]
) -> Composed:
    """Compose and check an arm.

    Args:
        choices: the values of CHOICES, without the seed.
        others: the other overrides.
    """
    experiment = find_experiment(name, choices.get("preset"), choices.get("recipe"))
    metric = find_metric(experiment.metric)
    norm = choices.get("norm", "layernorm")
    subword = _subword(experiment, choices)
    work = request.work or WORK
    if ":" in str(work):
        raise CommandError(f"--work is {work}, but fairseq splits paths at a colon; choose another")
    pretrained = _pretrained(request.pretrained, experiment)
    user_dir = request.user_dir
    import_user_dir(user_dir)

    code_dir = None if user_dir is None else str(user_dir)
    check_extra_flags(request.extra_flags)
    check_no_code(request.extra_flags, code_dir)  # before fairseq evaluates some of them
    base, config = _hyperparameters(experiment, norm, request, others)
    changed = differences(config, base)
    if pretrained is not None:
        changed["pretrained"] = digest(pretrained)
    config["common"]["seed"] = SEED
    if user_dir is not None:
        config["common"]["user_dir"] = code_dir
    trained = for_workers(config, request)
    workers = trained.get("distributed_training", {}).get("distributed_world_size", 1)
    if workers > 1:  # another run: each worker has its own batch statistics
        changed["distributed_training.distributed_world_size"] = workers
        changed |= {"scale_batch_size": True} if request.scale_batch_size else {}
    given = config["common"].get("log_interval") != base["common"].get("log_interval")
    if experiment.log_interval is not None and not given:
        trained["common"]["log_interval"] = experiment.log_interval
    logging = {key: trained["common"].get(key) for key in LOGGING}
    base_logging = {key: base["common"].get(key) for key in LOGGING}
    check_composed(trained, base)
    training = training_flags(trained)
    evaluation = metric.flags(subword, config)
    check_no_code([*training, *evaluation], code_dir)
    if metric.checkpoint == AVERAGE:
        check_number_averaged(config)
    plugin = user_dir or PLUGIN
    without_seed = {**trained, "common": {**trained["common"], "seed": None}}
    checked = (*training_flags(without_seed), "--user-dir", os.path.abspath(plugin))
    placement = "" if request.outline else check_training(checked)  # an outline shows none

    raw = raw_folder(request.raw, experiment)
    parts = (experiment.config.stem, experiment.recipe, subword, "smoke" if request.smoke else "")
    sources = sources_in_use(user_dir, training)

    def run(seed: int, overrides: Sequence[str]) -> RunSpec:
        data, preparation = prepared_data(
            work, experiment, subword, seed, raw, pretrained, trained["task"]
        )
        return RunSpec(
            experiment="_".join(filter(None, parts)),
            arm=Arm(norm, placement, changed),
            seed=seed,
            metric=metric.name,
            settings={**trained, "common": {**trained["common"], **base_logging, "seed": seed}},
            logging=logging,
            subword=subword,
            preparation=preparation,
            data=data,
            work=work,
            results=request.results or work / "results",
            user_dir=user_dir,
            sources=sources,
            pretrained=pretrained,
            overrides=tuple(overrides),
            fold=request.fold_norms,
            srun=request.srun,
            tensorboard=request.tensorboard,
        )

    return run


def split_choices(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of CHOICES by name, and the other overrides with full names of keys."""
    choices: dict[str, str] = {}
    others = []
    for override in parse_overrides(overrides):
        line, key = str(override.input_line), override.key_or_group
        if key in CHOICES and not override.is_delete() and not override.is_add():
            choices[key] = str(override.get_value_element_as_str()).strip("'\"")
            continue
        name = "norm_placement" if key == "placement" else key.removeprefix("model.")
        full = f"model.{name}" if name.startswith("norm_") else key
        if full in RUN_OPTIONS:
            raise CommandError(f"{line}: give {RUN_OPTIONS[full]} instead")
        others.append(line.replace(key, full, 1))
    return choices, others


def _subword(experiment: Experiment, choices: dict[str, str]) -> str:
    """Return the subword method; empty for the default, which is the first of SUBWORDS."""
    subword = choices.get("subword", SUBWORDS[0])
    if subword not in SUBWORDS:
        raise CommandError(f"subword is {subword}; choose {' or '.join(SUBWORDS)}")
    if experiment.words and "subword" in choices:
        raise CommandError(f"{experiment.name} has no subword units; drop subword=")
    return "" if subword == SUBWORDS[0] else subword


def _pretrained(checkpoint: Path | None, experiment: Experiment) -> Path | None:
    if checkpoint is None:
        return None
    if experiment.metric != "accuracy":
        raise CommandError(
            f"--pretrained is for classification, but {experiment.name} is another task; drop it"
        )
    for file in (checkpoint, checkpoint.with_name("dict.txt")):
        if not file.is_file():
            raise CommandError(
                f"--pretrained needs {file}, which does not exist; give a checkpoint of "
                "norm_masked_lm, and copy the dict.txt of its data to its folder"
            )
    return checkpoint


def _hyperparameters(
    experiment: Experiment,
    norm: str,
    request: Request,
    overrides: Sequence[str],
) -> tuple[Configuration, Configuration]:
    """Return the hyperparameters of the experiment without and with the overrides and flags."""
    groups = [f"norm={norm}"]
    groups += [f"recipe={experiment.recipe}"] if experiment.recipe else []
    groups += [f"size={experiment.smoke}"] if request.smoke else []
    base = read_configuration(str(experiment.config), groups)
    config = read_configuration(str(experiment.config), [*groups, *overrides])
    check_hyperparameters(config, request.user_dir)  # before fairseq evaluates some of them
    from_flags = settings_of_flags(request.extra_flags, config)
    check_given_once(from_flags, overrides)
    for group, settings in from_flags.items():
        config[group] = {**config.get(group, {}), **settings}
    config = in_one_form(config, base)
    return without_defaults(base, norm), without_defaults(config, norm)
