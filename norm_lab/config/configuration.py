"""The hyperparameters in ``configs/``, composed by hydra, and as flags of fairseq.

``fairseq-hydra-train`` reads these files itself. For ``fairseq-train`` and ``fairseq-generate``,
``norm-plugin fairseq-flags`` prints the flags.
"""

from __future__ import annotations

import copy
import logging
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import norm_plugin
from norm_lab.config.checks import check_hyperparameters
from norm_lab.config.experiments import settings_in
from norm_lab.config.names import check_registered
from norm_lab.config.options import AUTO, Request
from norm_lab.config.studies import read_yaml
from norm_lab.paths import CONFIGS
from norm_lab.run.flags import (
    LOGGING,
    Configuration,
    averaging_flags,
    check_precision_on_cpu,
    generation_flags,
    training_flags,
)
from norm_lab.run.record import Value
from norm_plugin.declarations.flags import (
    CHOICES,
    NORM_TYPE,
    PLACEMENT,
    VALUES,
    flag_of,
    option_field,
)
from norm_plugin.declarations.option import NormDeclaration
from norm_plugin.declarations.reading import read_norms, read_placements
from norm_plugin.io.command_line import CommandError, Parser, UsageError, usage_errors
from norm_plugin.io.user_dirs import import_user_dir

OF_EXPERIMENT = ("run", "output_subdir", "runtime")
"""The keys of the section ``hydra`` in the file of an experiment."""
NAMED_ELSEWHERE = {"common.seed", "common.user_dir", "model.norm_type"}
WITHOUT_EFFECT = "model.norm_record"
"""The prefix of the settings of the recorder, which do not affect the training."""
ON_CPU = {"distributed_backend": "gloo", "ddp_backend": "legacy_ddp"}
"""The settings for several workers on CPUs."""


def read_configuration(name: str, overrides: Sequence[str] = ()) -> Configuration:
    """Return the configuration of ``fairseq-hydra-train --config-name name overrides``.

    ``norm=X`` and ``placement=X`` stand for ``model.norm_type=X`` and ``model.norm_placement=X``.
    X may be a name that an imported ``--user-dir`` registers.

    Args:
        name: the name of a file of ``configs/``, or a path that ends in ``.yaml``.

    Raises:
        CommandError: the file or norm is unknown, or hydra refuses an override.
    """
    path = Path(name).absolute() if name.endswith(".yaml") else CONFIGS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
        raise CommandError(f"there is no {name} in {CONFIGS}; choose from {known or 'none'}")
    check_no_hydra_settings(path, overrides)
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    model: dict[str, Value] = {}
    if "norm" in given:
        check_registered("norm", given["norm"], norms_with(given["norm"]))
        model = {NORM_TYPE: given["norm"]}
        model |= _given_by_papers(path, given["norm"], given.get("recipe"))
    if "placement" in given:
        check_registered("placement", given["placement"], placements_with(given["placement"]))
        model[PLACEMENT] = given["placement"]
    for_hydra = [f"++model.{key}={value}" for key, value in model.items()]
    # With two plus signs, hydra adds what the file lacks, as the options of norms.
    for_hydra += [
        f"++{each}" if each.startswith("model.norm_") else each
        for each in overrides
        if each.partition("=")[0] not in ("norm", "placement")
    ]
    config = copy.deepcopy(_compose(path, tuple(for_hydra)))
    return {**config, "model": _with_options(config["model"])}


@lru_cache(maxsize=1000)
def _given_by_papers(path: Path, norm: str, recipe: str | None) -> dict[str, Value]:
    """Return the settings that a paper gives for a norm on a corpus: the key ``norms``."""
    settings = settings_in(read_yaml(path)) or {}
    of_recipe = settings.get("recipes", {}).get(recipe, {})
    given: dict[str, Value] = {**settings, **of_recipe}.get("norms", {}).get(norm, {})
    return given


def _with_options(model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a model with all options of its norm, which are None by default.

    They follow the name of the norm: the order of the flags identifies the stages of a run.
    """
    norm: Any = model.get(NORM_TYPE)
    if norm not in norms_with(norm):
        return model
    names = [option_field(option.name) for option in norms_with(norm)[norm].options]
    names += [key for key in (*CHOICES, *VALUES) if key != PLACEMENT]
    before = list(model)[: list(model).index(NORM_TYPE) + 1]
    return {name: model.get(name) for name in dict.fromkeys((*before, *names, *model))}


def norms_with(name: Any) -> Mapping[str, NormDeclaration]:
    """Return the norms of the package; if none has the name, also those of an imported user dir."""
    if name in read_norms():
        return read_norms()
    from norm_plugin.norms import NORM_TYPES, norm_spec  # imports torch

    return {each: norm_spec(each) for each in NORM_TYPES}


def placements_with(name: str) -> Collection[str]:
    """Return the names of placements, as :func:`norms_with` those of norms."""
    if name in read_placements():
        return read_placements()
    from norm_plugin.placements import PLACEMENTS  # imports torch

    return PLACEMENTS


def check_no_hydra_settings(path: Path, overrides: Sequence[str]) -> None:
    """Raise CommandError if an override or an own YAML file changes how hydra works.

    ``hydra.searchpath`` imports any Python package.
    """
    changes = [each for each in overrides if each.lstrip("+~").startswith("hydra")]
    if path.parent != CONFIGS:
        content = read_yaml(path)
        section = content.get("hydra") if isinstance(content, dict) else None
        changes += [f"hydra.{key}" for key in section or {} if key not in OF_EXPERIMENT]
        for entry in (content.get("defaults") if isinstance(content, dict) else None) or []:
            changes += [str(entry)] if "hydra" in str(entry) else []
    if changes:
        raise CommandError(
            f"{changes[0]} changes hydra itself, which could run code; drop it (only "
            "hydra.launcher.KEY=VALUE may be given, on the command line)"
        )


@lru_cache(maxsize=1000)
def _compose(path: Path, overrides: tuple[str, ...]) -> Configuration:
    """Compose a configuration by hydra; cached, because it takes 0.1 s and a sweep repeats it."""
    logging.getLogger("hydra").setLevel(logging.WARNING)  # fairseq lowers the root level
    try:
        # a file elsewhere can also use the groups of configs/
        escaped = str(CONFIGS).replace("'", "\\'")  # in quotes, any other character may occur
        groups = [] if path.parent == CONFIGS else [f"hydra.searchpath=['file://{escaped}']"]
        with initialize_config_dir(str(path.parent), version_base="1.1"):
            composed = compose(path.stem, [*groups, *overrides])
        config: Any = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        # hydra's message ends with its search path, which is always our own folder
        reason = " ".join(str(error).partition("Config search path")[0].split())
        raise CommandError(f"{' '.join([path.stem, *overrides])}: {reason}") from error
    return {str(group): values for group, values in config.items()}


def check_no_code(flags: Sequence[str], user_dir: str | None) -> None:
    """Raise CommandError for a flag whose value would run as code.

    Args:
        user_dir: the ``--user-dir`` that the user has given.
    """
    from norm_plugin.io.stored_settings import UnsafeSettingError, check_flags  # fairseq

    try:
        check_flags(flags, user_dirs=(norm_plugin.__name__, user_dir))
    except UnsafeSettingError as error:
        raise CommandError(str(error)) from error


def differences(config: Configuration, base: Configuration) -> dict[str, Value]:
    """Return the settings of ``config`` that differ from those of ``base``, by dotted name.

    A setting that only ``base`` has is None. It is omitted if the two name different components
    for the group, since these have different settings.
    """
    settings = {
        f"{group}.{key}": value
        for group in config
        for key, value in config[group].items()
        if value != base.get(group, {}).get(key)
    }
    for group, base_settings in base.items():
        if f"{group}._name" not in settings:
            removed = {key for key, value in base_settings.items() if value is not None}
            removed -= config.get(group, {}).keys()
            settings |= {f"{group}.{key}": None for key in base_settings if key in removed}
    unnamed = NAMED_ELSEWHERE | {f"common.{key}" for key in LOGGING}
    return {
        key: value
        for key, value in settings.items()
        if key not in unnamed and not key.startswith(WITHOUT_EFFECT)
    }


def in_one_form(config: Configuration, base: Configuration) -> Configuration:
    """Return ``config`` with each setting in one form, so that equal settings are equal text.

    A value that equals that of ``base`` is written as there; other numbers are written in their
    shortest form, 1 for 1.0; and a single value is a list where that of ``base`` is one. Settings
    are in the order of ``base``, and those that it lacks follow in alphabetical order.
    """

    def form(value: Value, base_value: Value) -> Value:
        if isinstance(base_value, list) and value is not None and not isinstance(value, list):
            value = [value]
        return base_value if value == base_value else _shortest(value)

    formed: Configuration = {}
    for group in _in_order(config, base):
        settings, defaults = config[group], base.get(group, {})
        formed[group] = {
            key: form(settings[key], defaults.get(key)) for key in _in_order(settings, defaults)
        }
    return formed


def _in_order(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """Return ``names``, those of ``first`` in its order and then the others in alphabetical one."""
    places = {name: place for place, name in enumerate(first)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))


def _shortest(value: Value) -> Value:
    if isinstance(value, list):
        return [_shortest(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def without_defaults(config: Configuration, norm: str) -> Configuration:
    """Return ``config`` with None for each option of its norm that has its default value.

    So a run with ``norm_variant=paper`` equals one without ``norm_variant``.

    Raises:
        UsageError: the value of an option is wrong.
    """
    model = dict(config["model"])
    for option in norms_with(norm)[norm].options:
        value = model.get(f"norm_{option.name}")
        try:
            is_default = value is not None and option.parse(value) == option.default
        except ValueError as error:
            raise UsageError(f"{option.flag}: {error}") from error
        if is_default:
            model[f"norm_{option.name}"] = None
    for key, choice in CHOICES.items():
        if choice.default is not None and model.get(key) == choice.default:
            model[key] = None
    return {**config, "model": model}


def for_workers(config: Configuration, request: Request) -> Configuration:
    """Return a copy of ``config`` for the GPUs of a request, with the same batch size.

    For one GPU, it also trains on the CPU of a machine that has none: ``engine/stages.py``.

    The batch size per update is ``max_tokens`` (or ``batch_size`` in sentences) times
    ``update_freq``, on one worker. With N workers, ``update_freq`` is divided by N.

    Raises:
        CommandError: there are fewer GPUs than requested, half precision is requested on the CPU,
            or the batch cannot be divided.
    """
    config, gpus = copy.deepcopy(config), request.gpus
    common = config.setdefault("common", {})
    on_cpu = bool(common.get("cpu"))
    for_here = gpus != AUTO or not request.elsewhere
    if for_here and (on_cpu or (gpus == AUTO and _count_gpus() == 0)):
        check_precision_on_cpu(common)
    if on_cpu and gpus == AUTO:
        return config
    if gpus != AUTO and not (gpus.isdigit() and int(gpus) > 0):
        raise CommandError(f"--gpus is {gpus!r}; it must be an integer of 1 or more, or {AUTO}")
    count = 1 if gpus == AUTO else int(gpus)
    if on_cpu and not request.srun:  # several workers on CPUs are processes of a Slurm job
        raise CommandError(f"--gpus is {gpus}, but this experiment is for the CPU; drop --gpus")
    if not on_cpu and gpus != AUTO and not request.elsewhere and count > _count_gpus():
        raise CommandError(f"--gpus is {count}, but this machine has {_count_gpus()}")
    config["distributed_training"] = {
        **config.get("distributed_training", {}),
        **(ON_CPU if on_cpu else {}),
        "distributed_world_size": count,
    }
    if count > 1 and not request.scale_batch_size:
        _divide_update_freq(config, count)
    return config


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _divide_update_freq(config: Configuration, count: int) -> None:
    """Divide ``update_freq`` in ``config`` by the number of workers, in place."""
    dataset, optimization = config["dataset"], config["optimization"]
    unit = "max_tokens" if dataset.get("max_tokens") is not None else "batch_size"
    size, (freq,) = dataset[unit], optimization.get("update_freq", [1])
    parts, rest = divmod(freq, count)
    if rest or not parts:
        share, uneven = divmod(size * freq, count)
        same = f" (dataset.{unit}={share} optimization.update_freq=[{count}])"
        raise CommandError(
            f"{count} GPUs of {flag_of(unit)} {size} cannot share the batch of {size} x {freq}: "
            f"choose another number of GPUs, another {flag_of(unit)} and update_freq"
            f"{'' if uneven or share > size else same}, or --scale-batch-size"
        )
    optimization["update_freq"] = [parts]


@usage_errors()
def main(argv: Sequence[str]) -> int:
    """Run the command ``fairseq-flags``: print hyperparameters as flags of fairseq."""
    parser = Parser(
        prog="norm-plugin fairseq-flags",
        description="Print the hyperparameters of an experiment as flags of fairseq, one per line.",
        example="""mapfile -t flags < <(norm-plugin fairseq-flags iwslt14_de_en norm=powernorm)
        fairseq-train DATA "${flags[@]}\"""",
    )
    parser.add_argument("config", help="a file of configs/, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for hydra")
    parser.set_defaults(flags_of=training_flags)
    what = parser.add_mutually_exclusive_group()
    for flag, command, function in (
        ("--generation", "fairseq-generate", generation_flags),
        ("--averaging", "norm-plugin average", averaging_flags),
    ):
        store = {"action": "store_const", "const": function, "dest": "flags_of"}
        what.add_argument(flag, **store, help=f"print the flags of {command}")  # type: ignore[arg-type]
    text = "your own --user-dir, which imports norm_plugin; norm=X accepts its norms"
    parser.add_argument("--user-dir", type=Path, metavar="DIR", help=text)
    parser.add_argument("--shell", action="store_true", help="print one line, quoted for a shell")
    args = parser.parse_args(argv)
    import_user_dir(args.user_dir)
    config = read_configuration(args.config, args.overrides)
    check_hyperparameters(config, args.user_dir)
    if args.user_dir is not None:
        config["common"]["user_dir"] = os.path.abspath(args.user_dir)
    flags = args.flags_of(config)
    check_no_code(flags, config["common"].get("user_dir") if args.user_dir else None)
    print(shlex.join(flags) if args.shell else "\n".join(flags))
    return 0
