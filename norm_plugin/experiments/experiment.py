"""An experiment is one YAML file: hyperparameters, and under ``experiment`` what else it is.

fairseq allows no other keys beside its own, so ``experiment`` stands where hydra keeps what it does
not read itself, in ``hydra.runtime.choices``. It has these keys; corpus and metric are needed:

    name: multi30k          # of `norm-plugin run`; by default that of the file
    corpus: multi30k        # a file of data-prep/, or a path beside the YAML file
    metric: bleu            # a file of norm_plugin/experiments/metrics/
    smoke: smoke            # the file of configs/size/ that --smoke stands for
    words: true             # no subword units
    split_by_seed: true     # each seed has a random split of the corpus of its own
    merges: 10000           # of BPE, where they are not the corpus' own
    recipe: adanorm         # of the group recipe, where none is named
    log_interval: 5         # updates between two points of the training curve, of 50 or more; it
                            # stands here, as it is no part of what identifies a run
    preset: cpu             # what `preset=` calls this file
    default: true           # of several files with one name, the one without `preset=`
    presets: {short: {recipe: short}}   # further presets of this file
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.recipes import CONFIGS

KEY = "experiment"
Facts = dict[str, Any]
"""What a YAML file has under KEY."""


@dataclass(frozen=True)
class Experiment:
    """What distinguishes one experiment from another, besides its hyperparameters.

    The attributes are the keys of the YAML file, see above.

    Attributes:
        config: the YAML file.
    """

    name: str
    config: Path
    corpus: str
    metric: str
    smoke: str = "smoke"
    words: bool = False
    split_by_seed: bool = False
    merges: int | None = None
    recipe: str | None = None
    log_interval: int | None = None

    @property
    def logging(self) -> Facts:
        """What is logged beyond the hyperparameters, under ``common``."""
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
    return sorted({facts["name"] for facts in _files().values()})


def experiment_metrics() -> dict[str, str]:
    """The metric of each file in ``configs/`` that is an experiment, by the name of the file."""
    return {path.stem: facts["metric"] for path, facts in _files().items()}


def find_experiment(name: str, preset: str | None = None, recipe: str | None = None) -> Experiment:
    """An experiment by its name or the path of its YAML file, under a preset and a recipe.

    Raises CommandError for an unknown experiment or preset, and for a wrong key. An unknown recipe
    is noticed when the hyperparameters are composed.
    """
    if name.endswith(".yaml"):
        files = _users_file(Path(os.path.abspath(name)))
    else:
        files = {path: facts for path, facts in _files().items() if facts["name"] == name}
    if not files:
        raise CommandError(
            f"no experiment {name}; choose from {', '.join(experiment_names())}, or give the path "
            "of a file NAME.yaml"
        )
    presets: dict[str | None, Experiment] = {}
    for path, facts in files.items():
        if len(files) == 1 or facts.get("default"):
            presets[None] = _experiment(path, facts)
        if "preset" in facts:
            presets[facts["preset"]] = _experiment(path, facts)
        for key, more in facts.get("presets", {}).items():
            presets[key] = _experiment(path, facts | more)
    if preset not in presets:
        known = " or ".join(filter(None, presets)) or "none, as it has no presets"
        raise CommandError(f"preset of {name} is {preset}; choose {known}")
    return presets[preset] if recipe is None else replace(presets[preset], recipe=recipe)


def _experiment(path: Path, facts: Facts) -> Experiment:
    """Facts without those that only choose the file."""
    facts = {key: facts[key] for key in facts if key not in ("preset", "presets", "default")}
    wrong = set(facts) - {field.name for field in fields(Experiment)}
    if wrong or not {"corpus", "metric"} <= set(facts):
        raise CommandError(
            f"{path}: {KEY} needs corpus and metric, and has no key {', '.join(wrong)}"
        )
    return Experiment(config=path, **facts)


def _users_file(path: Path) -> dict[Path, Facts]:
    """A YAML file of the user's own; CommandError for one with the name of a file of ours."""
    facts = _facts(path)
    for own, folder in ((path, "configs"), (path.parent / facts.get("corpus", ""), "data-prep")):
        other = CONFIGS.parent / folder / own.name
        if own.suffix and other.is_file() and not other.samefile(own):
            raise CommandError(
                f"{own} has the name of a file of {folder}/, and its data and results would be "
                "mixed with those of that one; rename it"
            )
    return {path: facts}


@cache
def _files() -> dict[Path, Facts]:
    """The YAML files of experiments in ``configs/``, and their keys."""
    files = {path: _facts(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    return {path: facts for path, facts in files.items() if "corpus" in facts}


def _facts(path: Path) -> Facts:
    if not path.is_file():
        raise CommandError(f"no experiment {path}: there is no such file")
    facts = facts_in(OmegaConf.to_container(OmegaConf.load(path)))
    return {"name": path.stem, **(facts or {})}


def facts_in(content: Any) -> Facts | None:
    """What the content of a YAML file has under ``experiment``; None for another file."""
    for key in ("hydra", "runtime", "choices", KEY):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else None
