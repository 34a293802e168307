"""The hyper-parameters of an experiment live in ``configs/*.yaml``; this reads them as flags.

``fairseq-hydra-train`` takes those files directly. ``fairseq-train`` and ``fairseq-generate``
take the flags that this prints, one word a line:

    mapfile -t flags < <(python -m norm_plugin.recipes configs/multi30k_cpu.yaml)
    fairseq-train DATA "${flags[@]}"
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any, Dict, List

from omegaconf import MISSING, OmegaConf

NAME_FLAGS = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
"""fairseq's group of a YAML file to the flag that its ``_name`` stands for."""

GENERATION = "generation"
NOT_FAIRSEQ = ("hydra", "defaults")


def recipe_flags(path: str, generation: bool = False) -> List[str]:
    """The flags of ``fairseq-train``, or of ``fairseq-generate``, that say what a recipe says.

    Args:
        path: a primary file of ``configs/``.
        generation: give the decoding flags instead of the training flags.

    Raises:
        ValueError: the file is not there, or holds something that has no form as a flag.
    """
    try:
        recipe = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except FileNotFoundError:
        raise ValueError(f"no recipe {path}; the recipes are the files of configs/") from None
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} is not a recipe: it must hold groups such as task and model")
    flags: List[str] = []
    for group, values in recipe.items():
        if group not in NOT_FAIRSEQ and (group == GENERATION) == generation:
            flags += _group_flags(path, str(group), values)
    return flags


def _group_flags(path: str, group: str, values: Dict[str, Any]) -> List[str]:
    flags: List[str] = []
    for key, value in values.items():
        if key == "_name":
            flags += [NAME_FLAGS[group], str(value)]
        elif isinstance(value, dict):
            raise ValueError(f"{path}: {group}.{key} is a group in a group; write flat keys")
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


def main() -> None:
    """Print the flags of a recipe."""
    parser = argparse.ArgumentParser(prog="python -m norm_plugin.recipes", description=__doc__)
    parser.add_argument("recipe", help="a file of configs/")
    parser.add_argument("--generation", action="store_true", help="the flags of fairseq-generate")
    parser.add_argument("--shell", action="store_true", help="on one line, ready to paste")
    args = parser.parse_args()
    try:
        flags = recipe_flags(args.recipe, args.generation)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(shlex.join(flags) if args.shell else "\n".join(flags))


if __name__ == "__main__":
    main()
