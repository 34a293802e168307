"""The YAML file of a study: its runs, the declared comparisons, and the tuning.

A study is a folder with this file, ``study.yaml``, and all that its runs leave; ours are in
``studies/``. A file ``NAME.yaml`` elsewhere is a study too. docs/studies.md explains the keys.

The process that supervises runs imports this module, so it must not import torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_lab.paths import STUDIES
from norm_plugin.io.command_line import CommandError, usage_errors

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from norm_lab.metrics import Metric

STUDY_FILE, TUNED_FILE = "study.yaml", "tuned.json"
"""The file of a study in its folder, and that with its tuned values."""
SCORE, LOSSES = "score", ("valid_loss", "train_loss")
"""Outcomes of every run: its score, the lowest validation loss and the final training loss."""
SUPERIORITY, EQUIVALENCE = "superiority", "equivalence"
BEFORE, AFTER = "before the runs", "after the runs"
MINUS = " minus "
"""The separator of the two arms of a difference."""
T = TypeVar("T")


@dataclass
class PrimaryComparison:
    """A comparison that a study declares.

    Attributes:
        arm: the difference is ``arm`` minus ``baseline``; each is an arm, or a difference of two.
        outcome: ``score``, ``valid_loss``, ``train_loss``, or another kind of score of the metric.
        test: superiority, or equivalence within the margin.
        margin: the margin of a test of equivalence, with its unit: ``0.5 BLEU``.
        paired: pair the arms by seed; they must share seeds.
        declared: before or after the runs, as the study.
    """

    arm: str
    baseline: str
    outcome: str = SCORE
    test: str = SUPERIORITY
    margin: str = ""
    paired: bool = True
    declared: str = BEFORE

    @property
    def size(self) -> float | None:
        """The margin as a number."""
        return float(self.margin.split(maxsplit=1)[0]) if self.margin else None


@dataclass
class Tuning:
    """The section ``tune`` of a study; without a bound, the grid grows by a few values.

    Without the section, the grid is empty.
    """

    grid: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    bound: Any = None

    @property
    def bounds(self) -> dict[str, list[Any]]:
        """The bound of each key that has one."""
        if isinstance(self.bound, dict):
            return self.bound
        return {} if self.bound is None else {next(iter(self.grid)): self.bound}


@dataclass
class StudyFile:
    """The keys of a study's file, and ``path``, the file.

    Attributes:
        setting: what tables of several studies call it.
        superseded: the study that answers the question better.
    """

    experiment: str
    overrides: list[str] = field(default_factory=list)
    arms: list[list[str]] = field(default_factory=lambda: [[]])
    primary: list[PrimaryComparison] = field(default_factory=list)
    declared: str = BEFORE
    vary: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    setting: str = ""
    superseded: str = ""
    tune: Tuning = field(default_factory=Tuning)
    path: Path = Path()

    @property
    def tuned(self) -> tuple[str, ...]:
        """The keys that are tuned."""
        return tuple(self.tune.grid)

    @property
    def seeds(self) -> set[int]:
        """The seeds of all arms; the default is 1."""
        return set().union(*self._seeds_by_arm())

    @property
    def common_seeds(self) -> set[int]:
        """The seeds that every arm has."""
        return set.intersection(*self._seeds_by_arm())

    def _seeds_by_arm(self) -> list[set[int]]:
        by_arm: list[set[Any]] = []
        for arm in self.arms:
            given = parse_overrides(["seed=1", *self.overrides, *arm])
            seed = [each for each in given if each.key_or_group == "seed"][-1]
            several = seed.is_sweep_override()
            by_arm.append(set(seed.sweep_iterator()) if several else {seed.value()})
        return by_arm


def study_path(name: str) -> Path:
    """Return the file of a study, given its name, its folder or the file."""
    if name.endswith(".yaml"):
        return Path(os.path.abspath(name))
    in_folder = Path(os.path.abspath(name), STUDY_FILE)
    return in_folder if in_folder.is_file() else STUDIES / name / STUDY_FILE


def tuned_path(study: Path) -> Path:
    """Return the file with the tuned values, next to the study file.

    It is ``tuned.json`` in the folder of a study, and ``NAME.tuned.json`` beside ``NAME.yaml``.
    """
    if study.name == STUDY_FILE:
        return study.with_name(TUNED_FILE)
    return study.with_suffix(".tuned.json")


def study_name(path: Path) -> str:
    """Return the name of a study by its file: that of its folder, or of a file elsewhere."""
    return path.parent.name if path.name == STUDY_FILE else path.stem


def question(path: Path) -> str:
    """Return the first sentence of the comment at the head of a study's file; may be empty."""
    comment = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    lines = takewhile(bool, (line.removeprefix("#").strip() for line in comment))
    words = " ".join(lines)
    sentence = re.match(r".*?(?:\?|(?<! al)\.(?=\s|$))", words)  # "et al." ends none
    return sentence[0] if sentence else words


def study_names() -> list[str]:
    """Return the names of all studies in ``studies/``."""
    return sorted(path.parent.name for path in STUDIES.glob(f"*/{STUDY_FILE}"))


def results_folder(name: str) -> Path:
    """Return a folder of results, given its path or the name of a study."""
    path = Path(name)
    return path if path.is_dir() or not (STUDIES / name).is_dir() else STUDIES / name


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise CommandError if it cannot be read."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error


def split(overrides: Sequence[str]) -> list[list[str]]:
    """Return all combinations of the values of overrides in hydra's syntax."""
    return [list(run) for run in product(*map(_values, parse_overrides(overrides)))]


def _values(override: Override) -> list[str]:
    """Return an override with several values as one override per value."""
    from hydra.errors import HydraException

    if not override.is_sweep_override():
        return [str(override.input_line)]
    try:
        texts = list(override.sweep_string_iterator())
    except HydraException as error:
        raise CommandError(
            f"{override.input_line} does not list its values; separate them by commas"
        ) from error
    return [f"{override.get_key_element()}={text}" for text in texts]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides by hydra; raise CommandError for a syntax error."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    for each in overrides:
        if "=" not in each and not each.startswith("~"):
            raise CommandError(
                f'{each!r} is not KEY=VALUE; in a file, several values need quotes: "seed=1,2"'
            )
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise CommandError(str(error).splitlines()[0]) from error


def dataclass_of(kind: type[T], content: Any, where: str) -> T:
    """Return a dataclass from the content of a YAML file; CommandError if a value is wrong."""
    escaped = json.dumps(content, default=str).replace("${", r"\\${")  # it is for hydra, later
    try:
        given = OmegaConf.create(json.loads(escaped))
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), given))
        return cast(T, made)
    except OmegaConfBaseException as error:
        keys = ", ".join(each.name for each in fields(kind))  # type: ignore[arg-type]
        reason = " ".join(str(error).split())
        raise CommandError(f"{where}: {reason}; the keys are {keys}") from error


@usage_errors()
def read_study_file(path: Path) -> StudyFile:
    """Read and check the file of a study.

    :func:`check_study` checks it against the metric and the runs.

    Raises:
        CommandError: the file cannot be read, a key is missing or unknown, or a value is wrong.
    """
    study = dataclass_of(StudyFile, read_yaml(path), str(path))
    study.path = path
    if study.experiment.endswith(".yaml"):
        study.experiment = str(path.parent / study.experiment)
    for text, count in Counter(study.labels.values()).items():
        if count > 1:
            raise CommandError(f"{path}: {count} arms have the label {text!r}; give each its own")
    if study.declared not in (BEFORE, AFTER):
        raise CommandError(
            f"{path}: declared is {study.declared!r}; it must be {BEFORE!r} or {AFTER!r}"
        )
    if not study.arms:
        raise CommandError(f"{path}: arms is empty; give each arm a list of overrides, or drop it")
    _check_primary(study)
    if study.tune != Tuning():
        _check_tuning(study.tune, f"{path}: tune")
    return study


def _check_primary(study: StudyFile) -> None:
    """Check each comparison by itself; set ``declared`` to that of the study, and arms' names."""
    by_label = {label: arm for arm, label in study.labels.items()}
    for number, each in enumerate(study.primary, start=1):
        where = f"{study.path}: primary comparison {number}"
        each.declared = study.declared
        each.arm, each.baseline = (
            MINUS.join(by_label.get(term, term) for term in terms(side))
            for side in (each.arm, each.baseline)
        )
        if each.test not in (SUPERIORITY, EQUIVALENCE):
            raise CommandError(
                f"{where}: test is {each.test!r}; it must be {SUPERIORITY} or {EQUIVALENCE}"
            )
        if bool(each.margin) != (each.test == EQUIVALENCE):
            raise CommandError(
                f"{where}: test: {EQUIVALENCE} needs a margin, as 0.5 BLEU; other tests have none"
            )
        sides = (each.arm, each.baseline)
        if max(len(terms(side)) for side in sides) > 2 or any(
            len(set(pair)) < len(pair) for pair in (sides, *map(terms, sides))
        ):
            raise CommandError(
                f"{where}: it compares {each.arm} with {each.baseline}; each must be an arm or the "
                f"difference of two, as A{MINUS}B, and none compared with itself"
            )


def _check_tuning(tuning: Tuning, where: str) -> None:
    """Check the numbers of a tuning, and sort its values."""
    if not 1 <= len(tuning.grid) <= 2:
        raise CommandError(f"{where}: grid must have one or two keys, each with its values")
    bounds = {f"bound of {key}": values for key, values in tuning.bounds.items()}
    for key, values in {**tuning.grid, **bounds, "seeds": tuning.seeds}.items():
        numbers = isinstance(values, list) and all(
            type(each) in (int, float) and 0 <= each < math.inf for each in values
        )
        least = 1 if key == "seeds" else 2
        texts = {f"{each:.6g}" for each in values} if numbers else set()  # as overrides have them
        if not numbers or not least <= len(texts) == len(values):
            raise CommandError(
                f"{where}: {key} is {values}; it must be {least} or more different numbers of 0 or "
                "more"
            )
        values.sort()
    for key, values in tuning.bounds.items():
        if key not in tuning.grid or len(values) != 2:
            raise CommandError(
                f"{where}: bound of {key} is {values}; it must be [LEAST, GREATEST], of a key of "
                "the grid"
            )


def terms(side: str) -> list[str]:
    """Return the arms on a side of a comparison: one, or the two of a difference."""
    return side.split(MINUS)


def _contrast(comparison: PrimaryComparison) -> frozenset[tuple[str, int]]:
    """Return the weight of each arm in a comparison; the same for the comparison the other way."""
    weights: Counter[str] = Counter()
    for side, sign in ((comparison.arm, 1), (comparison.baseline, -1)):
        for arm, weight in zip(terms(side), (sign, -sign)):
            weights[arm] += weight
    first = next((weight for _, weight in sorted(weights.items()) if weight), 1)
    turned = 1 if first > 0 else -1
    return frozenset((arm, turned * weight) for arm, weight in weights.items() if weight)


def find_arm(name: str, arms: Mapping[str, T], where: str) -> T:
    """Return the value of an arm by its name; CommandError for an unknown arm."""
    if name not in arms:
        raise CommandError(
            f"{where} names the arm {name}, which is not declared or has no run; choose from "
            f"{'; '.join(sorted(arms))}"
        )
    return arms[name]


def check_study(study: StudyFile, metric: Metric, seeds: Mapping[str, set[int]]) -> None:
    """Check the comparisons and the tuning of a study against its runs.

    Args:
        metric: the metric of its experiment.
        seeds: the seeds of each arm, by its name in ``primary``.

    Raises:
        CommandError: an arm is unknown, the arms of a paired comparison have no seed in common,
            the metric does not have the outcome, a margin has a wrong unit, or a tuning seed is
            also a seed of the runs.
    """
    hypotheses = set()
    for each in study.primary:
        arm_seeds, baseline_seeds = (
            set.intersection(*(find_arm(n, seeds, f"{study.path}: primary") for n in terms(side)))
            for side in (each.arm, each.baseline)
        )
        where = f"{study.path}: {each.arm} minus {each.baseline}"
        if each.paired and not arm_seeds & baseline_seeds:
            raise CommandError(
                f"{where} is paired, but the arms have no seed in common; give both the same "
                "seeds, or declare paired: false"
            )
        outcome = "score" if each.outcome == metric.headline else each.outcome
        if (hypothesis := (_contrast(each), outcome)) in hypotheses:
            raise CommandError(
                f"{where} in {each.outcome} is declared twice, maybe with other names or signs: "
                "a correction would count it twice"
            )
        hypotheses.add(hypothesis)
        unit = outcome_unit(each.outcome, metric, where)
        if each.margin:
            _check_margin(each.margin, unit, where)
    common = sorted(set(study.tune.seeds) & set().union(*seeds.values()))
    if common:
        raise CommandError(
            f"{study.path}: the tuning seed {common[0]} is also a seed of the study's runs; "
            "choose another"
        )


def outcome_unit(outcome: str, metric: Metric, where: str) -> str:
    """Return the unit of an outcome; CommandError if the metric does not have it."""
    if outcome in (*LOSSES, *metric.losses):
        return metric.loss_unit
    if outcome == SCORE or outcome in metric.columns:
        return metric.units.get(outcome, metric.score_unit)
    names = [
        SCORE,
        *LOSSES,
        *metric.losses,
        *(kind for kind in metric.columns if kind != metric.headline),
    ]
    raise CommandError(
        f"{where}: {metric.name} has no outcome {outcome}; choose from {', '.join(names)}"
    )


def _check_margin(margin: str, unit: str, where: str) -> None:
    """Check a margin. For the unit ``bits per sentence``, ``0.02 bits`` is accepted too."""
    number, _, given = margin.partition(" ")
    try:
        valid = 0 < float(number) < math.inf and given in (unit, unit.split()[0])
    except ValueError:
        valid = False
    if not valid:
        raise CommandError(
            f"{where}: the margin is {margin!r}; it must be a number above 0 with the unit of the "
            f"outcome, such as '0.5 {unit}'"
        )
