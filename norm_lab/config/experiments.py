"""An experiment: its YAML file in ``configs/``, or one of the user's own.

fairseq's schema allows no keys of ours, so ``experiment`` is under ``hydra.runtime.choices``,
which hydra does not read. corpus and metric are required:

    name: multi30k          # the argument of `norm-plugin run` (default: the name of the file)
    corpus: multi30k        # a file of data-prep/, or a path relative to the YAML file: a program,
                            # or with a / at its end a folder for data-prep/own_pairs.py
    metric: bleu            # a file of norm_lab/metrics/
    raw: multi30k           # the folder in NORM_DATA_DIR (default: the name of the corpus)
    smoke: smoke            # the file of configs/size/ that --smoke adds
    words: true             # tokens are words or characters: no subword units
    split_by_seed: true     # each seed has its own random split of the corpus
    merges: 10000           # BPE merges (default: those of the corpus)
    recipe: adanorm         # the default of the group recipe
    recipes: {powernorm: {merges: 37000}}   # keys of this list that a recipe changes
    norms: {adanorm: {norm_scale: 1}}   # settings of the model that a paper gives for a norm here
    log_interval: 5         # updates between two points of the training curve (default: 50 or
                            # more); it is here because it does not identify a run
    preset: cpu             # the value of `preset=` that selects this file
    default: true           # the file without `preset=`, if several have the same name
    presets: {short: {recipe: short}}   # more presets of this file
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from norm_lab.config.studies import dataclass_of, read_yaml
from norm_lab.paths import CONFIGS
from norm_lab.run.record import Preparation, Value
from norm_plugin.io.command_line import CommandError, did_you_mean

KEY = "experiment"
Settings = dict[str, Any]
"""The content of the section KEY."""


@dataclass
class Experiment:
    """The keys of an experiment's YAML file, see above, and ``config``, the path of the file."""

    name: str
    corpus: str
    metric: str
    config: Path = Path()
    raw: str | None = None
    smoke: str = "smoke"
    words: bool = False
    split_by_seed: bool = False
    merges: int | None = None
    recipe: str | None = None
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    norms: dict[str, dict[str, Any]] = field(default_factory=dict)
    log_interval: int | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of one's own sentence pairs, if the corpus is one."""
        own = self.config.parent / self.corpus
        return Path(os.path.abspath(own)) if self.corpus.endswith("/") else None

    @property
    def data_name(self) -> str:
        """The name of the prepared data, without the subword method."""
        name = self.folder.name if self.folder else Path(self.corpus).stem
        return name if self.merges is None else f"{name}-{self.merges}"

    @property
    def preparation(self) -> str:
        """The program that prepares the corpus."""
        if self.corpus.endswith(".py"):
            return str(self.config.parent / self.corpus)
        if self.folder:
            return "data-prep/own_pairs.py"
        return f"data-prep/{self.corpus}.py"


def experiment_names() -> list[str]:
    """Return the names of all experiments in ``configs/``."""
    return sorted({settings["name"] for settings in _files().values()})


def is_experiment(name: str) -> bool:
    """Return whether ``configs/`` has an experiment of this name."""
    return bool(_files(name))


def is_of_experiment(folder: str, name: str) -> bool:
    """Return whether a folder of runs, as ``multi30k_cpu_smoke``, is of an experiment or a file."""
    own = name.endswith(".yaml")
    stems = [Path(name).stem] if own else [path.stem for path in CONFIGS.glob("*.yaml")]
    stem = max((each for each in stems if f"{folder}_".startswith(f"{each}_")), key=len, default="")
    return stem in (stems if own else [path.stem for path in _files(name)])


def experiment_metrics() -> dict[str, str]:
    """Return the metric of each experiment in ``configs/``, by the name of its file."""
    return {path.stem: settings["metric"] for path, settings in _files().items()}


def find_experiment(name: str, preset: str | None = None, recipe: str | None = None) -> Experiment:
    """Return an experiment by its name or the path of its YAML file, with a preset and a recipe.

    Raises:
        CommandError: the experiment or preset is unknown, or a key is wrong. The recipe is checked
            later, when the hyperparameters are composed; here it selects a part of ``recipes``.
    """
    own = name.endswith(".yaml")
    files = _users_file(Path(os.path.abspath(name))) if own else _files(name)
    if not files:
        raise CommandError(
            f"there is no experiment {name}; {did_you_mean(name, experiment_names())} It may also "
            "be the path of a file NAME.yaml"
        )
    presets = _presets(files)
    if preset not in presets:
        known = " or ".join(filter(None, presets)) or "none, as it has no presets"
        raise CommandError(f"preset of {name} is {preset}; choose {known}")
    path, settings = presets[preset]
    keys = {key: settings[key] for key in settings if key not in ("preset", "presets", "default")}
    chosen = keys.get("recipe") if recipe is None else recipe
    keys |= {"config": path, "recipe": chosen, **keys.get("recipes", {}).get(chosen, {})}
    return dataclass_of(Experiment, keys, f"{path}: {KEY}")


def _presets(files: dict[Path, Settings]) -> dict[str | None, tuple[Path, Settings]]:
    """Return the file and settings of each preset, and of None, which stands for no preset."""
    presets: dict[str | None, tuple[Path, Settings]] = {}
    for path, settings in files.items():
        offered = {key: settings | more for key, more in settings.get("presets", {}).items()}
        if "preset" in settings:
            offered[settings["preset"]] = settings
        if len(files) == 1 or settings.get("default"):
            offered[None] = settings
        for key in offered.keys() & presets.keys():
            which = "`default: true`" if key is None else f"the preset {key}"
            raise CommandError(
                f"{presets[key][0]} and {path} both have the name {settings['name']} and {which}; "
                "change one of them"
            )
        presets |= {key: (path, each) for key, each in offered.items()}
    return presets


def _users_file(path: Path) -> dict[Path, Settings]:
    """Return the settings of a user's own YAML file.

    Raises:
        CommandError: ``configs/`` or ``data-prep/`` has a file of the same name.
    """
    settings = _settings(path)
    name = str(settings.get("corpus", ""))  # of any type yet
    corpus = path.parent / (f"{name.rstrip('/')}.py" if name.endswith("/") else name)
    for own, folder in ((path, "configs"), (corpus, "data-prep")):
        other = CONFIGS.parent / folder / own.name
        if own.suffix and other.is_file() and not (own.is_file() and other.samefile(own)):
            raise CommandError(
                f"{own} has the name of a file of {folder}/, so that their data and results would "
                "be mixed; rename it"
            )
    return {path: settings}


@cache
def _files(name: str | None = None) -> dict[Path, Settings]:
    """Return the YAML files of experiments in ``configs/``, or of one of them, and their settings.

    Parsing all takes half a second, so of one experiment only files that mention it are parsed.
    """
    paths = sorted(CONFIGS.glob("*.yaml"))
    if name is not None:
        mention = f"name: {name}"
        paths = [each for each in paths if each.stem == name or mention in each.read_text("utf-8")]
    files = {path: _settings(path) for path in paths}
    return {
        path: settings
        for path, settings in files.items()
        if "corpus" in settings and name in (None, settings["name"])
    }


def _settings(path: Path) -> Settings:
    return {"name": path.stem, **(settings_in(read_yaml(path)) or {})}


def settings_in(content: Any) -> Settings | None:
    """Return the settings under ``experiment`` in a YAML file's content, or None."""
    for key in ("hydra", "runtime", "choices", KEY):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else None


@cache  # the runs of a sweep share the file, which may be large
def digest(path: Path) -> str:
    """Return the first digits of a file's SHA-256, which identify a pre-trained model."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:12]


def prepared_data(
    work: Path,
    experiment: Experiment,
    subword: str,
    seed: int,
    raw: Path | None,
    pretrained: Path | None,
    task: Settings,
) -> tuple[Path, Preparation]:
    """Return the folder of the prepared corpus, and how it is prepared.

    Args:
        task: the settings of the task; a folder of sentence pairs does not say their direction.
    """
    name = experiment.data_name
    options: dict[str, Value] = {}
    if raw is not None:
        options["raw"] = str(raw)
    source, target = (task.get(f"{side}_lang") for side in ("source", "target"))
    if experiment.folder and source and target:
        name += f"-{source}-{target}"
        options |= {"src": source, "tgt": target}
    if subword:
        name += f"-{subword}"
        options["subword"] = subword
    if experiment.merges is not None:  # data_name contains them
        options["merges"] = experiment.merges
    if experiment.split_by_seed:
        name += f"-split{seed}"
        options["split_seed"] = seed
    if pretrained is not None:
        dictionary = pretrained.with_name("dict.txt")
        name += f"-words-{digest(dictionary)}"
        options["dictionary"] = str(dictionary)
    return work / "data" / name, Preparation(experiment.preparation, options)


def raw_folder(given: Path | None, experiment: Experiment) -> Path | None:
    """Return the folder of the raw corpus; None to download it."""
    if given is not None:
        return given
    if experiment.folder:
        return experiment.folder
    corpora = os.environ.get("NORM_DATA_DIR")
    corpus = Path(experiment.corpus).stem.replace("_", "-")
    name = experiment.raw or corpus
    folder = Path(corpora).absolute() / name if corpora else None
    return folder if folder is not None and folder.is_dir() else None
