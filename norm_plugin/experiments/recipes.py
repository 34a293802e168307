"""Print the hyper-parameters of an experiment, which are in ``configs/``, as flags of fairseq.

``fairseq-hydra-train`` reads those files itself. ``fairseq-train`` and ``fairseq-generate`` take
the flags that this command prints, one word a line, composed by hydra with the same overrides:

    mapfile -t flags < <(norm-plugin flags iwslt14_de_en norm=powernorm)
    fairseq-train DATA "${flags[@]}"
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_plugin.checkpoints.user_dirs import import_user_dir
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.gpus import Recipe
from norm_plugin.norms import NORM_TYPES
from norm_plugin.placements import PLACEMENTS

PACKAGE = Path(__file__).resolve().parents[1]
CONFIG_FOLDERS = (PACKAGE.parent / "configs", PACKAGE / "configs")
"""In a checkout, and in an installed package."""
CONFIGS = next(filter(Path.is_dir, CONFIG_FOLDERS), CONFIG_FOLDERS[0])
NAME_FLAGS = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
"""fairseq's group of a YAML file to the flag that its ``_name`` stands for."""

GENERATION, EVALUATION = "generation", "eval_lm"
"""fairseq's groups of settings of fairseq-generate, and of fairseq-eval-lm."""


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The configuration that ``fairseq-hydra-train --config-name name overrides`` composes.

    ``name`` is a file of ``configs/`` without its end, or the path of one that ends in ``.yaml``.

    ``norm=X`` and ``placement=X`` also take what an imported ``--user-dir`` registers, which has no
    file of these groups.

    Raises:
        ValueError: no such recipe, or an override that hydra refuses.
    """
    path = Path(name).absolute() if name.endswith(".yaml") else CONFIGS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
        raise ValueError(f"no recipe {name} in {CONFIGS}; choose from {known or 'none'}")
    norm, overrides = _own_norm(overrides)
    recipe = copy.deepcopy(_composed(path, tuple(overrides)))
    if norm is not None:
        recipe["model"]["norm_type"] = norm
    return recipe


@lru_cache(maxsize=1000)
def _composed(path: Path, overrides: tuple[str, ...]) -> Recipe:
    """What hydra composes; it takes a good tenth of a second, and a sweep asks for much twice."""
    logging.getLogger("hydra").setLevel(logging.WARNING)  # fairseq turns every logger up
    try:
        # the groups of configs/ serve a file that lies elsewhere
        groups = [] if path.parent == CONFIGS else [f"hydra.searchpath=[file://{CONFIGS}]"]
        with initialize_config_dir(str(path.parent), version_base="1.1"):
            composed = compose(path.stem, [*groups, *overrides])
        recipe = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        # hydra ends with where it looked, which is always our own folder.
        reason = " ".join(str(error).partition("Config search path")[0].split())
        raise ValueError(f"recipe {' '.join([path.stem, *overrides])}: {reason}") from error
    assert isinstance(recipe, dict)  # hydra composes nothing else
    return {str(group): values for group, values in recipe.items()}


def _own_norm(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The norm without a file in ``configs/`` that is asked for, and the overrides left to hydra.

    Raises:
        ValueError: there is neither such a file nor such a norm.
    """
    own, left = None, []
    for override in overrides:
        group, _, name = override.partition("=")
        if group == "placement" and name in PLACEMENTS:
            left.append(f"model.norm_placement={name}")
        elif group != "norm" or (CONFIGS / "norm" / f"{name}.yaml").is_file():
            left.append(override)
        elif name in NORM_TYPES:
            own = name
        else:
            raise ValueError(
                f"unknown norm {name!r}; choose from {', '.join(NORM_TYPES)}, or name by "
                "--user-dir the folder that registers it"
            )
    return own, left


def training_flags(recipe: Recipe) -> list[str]:
    """The flags of ``fairseq-train`` that say what a recipe says."""
    groups = (group for group in recipe if group not in (GENERATION, EVALUATION))
    return [flag for group in groups for flag in _group_flags(group, recipe[group])]


def generation_flags(recipe: Recipe) -> list[str]:
    """The flags of ``fairseq-generate`` that say what a recipe says."""
    return _group_flags(GENERATION, recipe.get(GENERATION, {}))


def evaluation_flags(recipe: Recipe) -> list[str]:
    """The flags of ``fairseq-eval-lm`` that a recipe gives in its group ``eval_lm``."""
    return _group_flags(EVALUATION, recipe.get(EVALUATION, {}))


def averaging_flags(recipe: Recipe, further: Sequence[str] = ()) -> list[str]:
    """The flags of ``norm_plugin.checkpoints.average``, to average all checkpoints that are kept.

    Args:
        further: flags of ``fairseq-train`` that come after those of the recipe.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    checkpoint = recipe["checkpoint"]
    if checkpoint.get("no_epoch_checkpoints"):  # the best one is evaluated
        return []
    for key in ("keep_interval_updates", "keep_last_epochs"):
        parser.add_argument(_flag(key), type=int, default=checkpoint.get(key, -1))
    kept, _ = parser.parse_known_args(list(further))
    if kept.keep_interval_updates > 0:
        return ["--last-updates", str(kept.keep_interval_updates)]
    if kept.keep_last_epochs > 0:
        return ["--last-epochs", str(kept.keep_last_epochs)]
    raise ValueError("the recipe keeps no number of checkpoints: set checkpoint.keep_last_epochs")


def _group_flags(group: str, values: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for key, value in values.items():
        if key == "_name":
            flags += [NAME_FLAGS[group], str(value)]
        elif isinstance(value, dict):
            raise ValueError(f"{group}.{key} is a group in a group; write flat keys")
        elif value is True:
            flags.append(_flag(key))
        elif value is not None and value is not False and value != MISSING:
            flags += [_flag(key), _word(value)]
    return flags


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _word(value: Any) -> str:
    """A value as fairseq's parser reads it: lists are joined by commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="norm-plugin flags",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="a primary file of configs/, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for hydra")
    parser.set_defaults(flags_of=training_flags)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--generation",
        action="store_const",
        const=generation_flags,
        dest="flags_of",
        help="the flags of fairseq-generate",
    )
    what.add_argument(
        "--averaging",
        action="store_const",
        const=averaging_flags,
        dest="flags_of",
        help="the flags of norm-plugin average",
    )
    parser.add_argument(
        "--user-dir",
        type=Path,
        metavar="DIR",
        help="a --user-dir of your own, which imports norm_plugin; norm=X takes its norms too",
    )
    parser.add_argument("--shell", action="store_true", help="on one line, ready to paste")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the flags of a recipe."""
    args = _parse(argv)
    import_user_dir(args.user_dir)
    try:
        recipe = read_recipe(args.recipe, args.overrides)
        if args.user_dir is not None:
            recipe["common"]["user_dir"] = os.path.abspath(args.user_dir)
        words = args.flags_of(recipe)
    except ValueError as error:
        raise CommandError(str(error)) from error
    print(shlex.join(words) if args.shell else "\n".join(words))
    return 0
