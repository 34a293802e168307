"""The facts of an experiment, from ``configs/experiment/<name>.yaml``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.recipes import CONFIGS

FACTS = CONFIGS / "experiment"


@dataclass(frozen=True)
class Facts:
    """What distinguishes one experiment from another, besides its hyper-parameters.

    Attributes:
        name: of its file in ``configs/experiment/``.
        corpus: of the module in ``data-prep/`` that prepares its data, or the path of one.
        config: the primary file of ``configs/`` with its hyper-parameters, or the path of one.
        metric: by which it is scored, a file of ``norm_plugin/experiments/metrics/``.
        smoke: the file of the group ``size`` that ``--smoke`` stands for.
        words: whether the text stays in words or characters, without subword units.
        split_by_seed: whether each seed has a random split of the corpus of its own.
        merges: BPE merges, where they are not the corpus' own.
        recipe: of the group ``recipe``; None for an experiment with one recipe.
    """

    name: str
    corpus: str
    config: str
    metric: str
    smoke: str = "smoke"
    words: bool = False
    split_by_seed: bool = False
    merges: int | None = None
    recipe: str | None = None

    @property
    def corpus_name(self) -> str:
        """The name of the corpus, without a path."""
        return Path(self.corpus).stem

    @property
    def config_name(self) -> str:
        """The name of the hyper-parameters, without a path."""
        return Path(self.config).stem

    @property
    def data_name(self) -> str:
        """The name of the prepared data, without the subword method."""
        return self.corpus_name if self.merges is None else f"{self.corpus_name}-{self.merges}"


def experiment_names() -> list[str]:
    """The names of all experiments."""
    return sorted(path.stem for path in FACTS.glob("*.yaml"))


def read_facts(name: str, preset: str | None = None, recipe: str | None = None) -> Facts:
    """The facts of an experiment under a preset and a recipe, each of them its default if None.

    Args:
        name: of a file in ``configs/experiment/``, or the path of one elsewhere, in which paths of
            files ``.py`` and ``.yaml`` are relative to it.

    Raises CommandError for an unknown experiment or preset. An unknown recipe is found when the
    hyper-parameters are composed.
    """
    path = FACTS / f"{name}.yaml"
    if is_path(name):
        path, name = Path(os.path.abspath(name)), Path(name).stem
        if not path.is_file():
            raise CommandError(f"no experiment {path}: there is no such file")
    elif name not in experiment_names():
        raise CommandError(
            f"no experiment {name}; choose from {', '.join(experiment_names())}, or give the path "
            "of a file NAME.yaml"
        )
    given: Any = OmegaConf.to_container(OmegaConf.load(path))
    presets = given.pop("presets", {})
    chosen = preset or given.get("preset")
    given.pop("preset", None)
    if chosen is not None:
        given.update(_preset(name, presets, chosen))
    if recipe is not None:
        given["recipe"] = recipe
    for key, folder in (("corpus", "data-prep"), ("config", "configs")):
        if Path(given[key]).suffix in (".py", ".yaml"):
            given[key] = str(path.parent / given[key])
            if (CONFIGS.parent / folder / Path(given[key]).name).is_file():
                raise CommandError(
                    f"{given[key]} has the name of a file of {folder}/, and its data and results "
                    "would be mixed with those of that one; rename it"
                )
    return Facts(name=name, **given)


def is_path(name: str) -> bool:
    """Whether an experiment or a study is named by the path of its file."""
    return name.endswith(".yaml")


def _preset(name: str, presets: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    if not presets:
        raise CommandError(f"{name} has no presets; leave preset={chosen} out")
    if chosen not in presets:
        raise CommandError(f"--preset is {chosen}; choose {' or '.join(presets)}")
    return dict(presets[chosen])
