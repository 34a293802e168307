"""What identifies a run: one typed value, from which its name, folders, stages and keys follow.

Composing it takes hydra, fairseq and torch, and happens in one short child process for all runs of
a command. The process that supervises runs imports only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError

PYTHON = [sys.executable]
"""Runs the commands of a run; tests put another in its place."""
ROOT = Path(__file__).resolve().parents[2]
Sources = Mapping[str, str]
"""The digest of each file of a user dir that a run rests on, by its path."""
AVERAGE, BEST = "average", "best"
"""The average of the last checkpoints, and the one that was best on the validation set."""


@dataclass(frozen=True)
class RunSpec:
    """One run, composed and checked.

    Attributes:
        experiment: the name of the folder of its results, ``multi30k_cpu``.
        label: the norm and what differs from the recipe, ``powernorm-released``.
        differs: the settings that differ from the recipe.
        metric: by which it is scored, a file of ``norm_plugin/experiments/metrics/``.
        checkpoint: which one is evaluated, AVERAGE or BEST.
        evaluation: the stage that evaluates the test set, its command, and the flags that decide
            the score.
        item: how each line of its output begins that stands for one item, and what items are
            called; None where it prints no such lines.
        digits: of a score, after the point.
        training: the flags of ``fairseq-train``.
        identity: the same with the recipe's own flags of logging, which identify no run.
        averaging: those of ``norm-plugin average``.
        preparation: the command of data preparation.
        data: the folder of the prepared corpus.
        user_dir: the user's own ``--user-dir``.
        sources: the digests of the files of the user dir that the training rests on.
        pretrained: a checkpoint that is fine-tuned.
        fold: evaluate with folded norms.
        srun: train by srun, in a Slurm job.
    """

    experiment: str
    label: str
    seed: int
    differs: Mapping[str, Any]
    metric: str
    checkpoint: str
    evaluation: tuple[str, str, tuple[str, ...]]
    item: tuple[str, str] | None
    digits: int
    training: tuple[str, ...]
    identity: tuple[str, ...]
    averaging: tuple[str, ...]
    preparation: tuple[str, ...]
    data: Path
    work: Path
    results: Path
    user_dir: Path | None
    sources: Sources
    pretrained: Path | None
    fold: bool
    srun: bool
    tensorboard: bool

    @property
    def folder(self) -> Path:
        """Of checkpoints, translations, logs and stamps."""
        return self.work / "runs" / self.experiment / f"{self.label}-seed{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """The ``--save-dir`` of the training."""
        return self.folder / "checkpoints"

    @property
    def stages(self) -> Path:
        """The folder of the stamps."""
        return self.folder / "stages"

    def log_of(self, stage: str) -> Path:
        """The file with the full output of a stage."""
        return self.folder / "logs" / f"{stage}.log"

    @property
    def evaluated(self) -> Path:
        """The checkpoint that is evaluated."""
        if self.checkpoint == AVERAGE:
            return self.folder / "averaged.pt"
        return self.checkpoints / "checkpoint_best.pt"

    @property
    def variant(self) -> str:
        """What follows the names of stages and of the result, where norms are folded."""
        return "-folded" if self.fold else ""

    @property
    def result(self) -> Path:
        """The file with its scores."""
        return self.results / self.experiment / f"{self.label}{self.variant}-seed{self.seed}.json"

    @property
    def failure(self) -> Path:
        """Where a failure is recorded: ``failed/`` beside the result."""
        return self.result.parent / "failed" / self.result.name

    @property
    def name(self) -> str:
        """For a person: ``multi30k_cpu powernorm, seed 1``."""
        return f"{self.experiment} {self.label}{self.variant}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunSpec:
        """The inverse of :meth:`to_json`."""
        paths = {field.name for field in fields(cls) if "Path" in str(field.type)}
        values: dict[str, Any] = {
            key: Path(value) if key in paths and value is not None else as_tuples(value)
            for key, value in content.items()
        }
        return cls(**values)


def as_tuples(value: Any) -> Any:
    """What JSON gives back, with lists as tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def changed_sources(before: Sources, now: Sources) -> list[str]:
    """The files that differ, or that only one of the two has."""
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))


def python_path(*folders: Path) -> str:
    """PYTHONPATH with further folders at its start."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])


def command_root() -> Path:
    """The checkout, in which commands run; raises CommandError for an installed package."""
    if not (ROOT / "data-prep").is_dir():
        raise CommandError("experiments need the checkout of norm_plugin, with its data-prep/")
    return ROOT


def write_spec(spec: RunSpec, path: Path) -> None:
    """Store a spec for a process that runs it."""
    path.write_text(json.dumps(spec.to_json()), encoding="utf-8")


def read_spec(path: Path) -> RunSpec:
    """What :func:`write_spec` stored."""
    return RunSpec.from_json(json.loads(path.read_text(encoding="utf-8")))


# --- the name of a run ---------------------------------------------------------------------------
#
# ``powernorm``, ``powernorm-released``, ``powernorm-layer-scale-groups-0``, ``adanorm-kaiming``.

Differences = dict[str, Any]

BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings whose values need no name beside them; ``_name`` is the last one."""
LOGGING = (
    *("aim_repo", "aim_run_hash", "azureml_logging", "log_file", "log_format", "log_interval"),
    *("no_progress_bar", "tensorboard_logdir", "wandb_project"),
)
"""Keys of ``common`` that say what is shown of a training, and change nothing of it."""
MOST_CHARACTERS = 120  # a file name may have 255, and more is put around this one
UNUSUAL = re.compile(r"[^A-Za-z0-9._]+")


def without_logging(flags: Sequence[str]) -> list[str]:
    """Flags of ``fairseq-train`` without those of ``LOGGING`` and their values."""
    logging_flags = {"--" + key.replace("_", "-") for key in LOGGING}
    others, is_logging = [], False
    for argument in flags:
        if argument.startswith("--"):
            is_logging = argument.partition("=")[0] in logging_flags
        if not is_logging:
            others.append(argument)
    return others


def flag_settings(flags: Sequence[str]) -> Differences:
    """Flags of ``fairseq-train`` as settings; a flag without a value is True."""
    values: dict[str, list[str]] = {}
    key = ""
    for argument in without_logging(flags):
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            values[key] = [value] if equals else []
        else:
            values.setdefault(key, []).append(argument)
    return {
        key: True if not given else given[0] if len(given) == 1 else given
        for key, given in values.items()
    }


def run_label(norm: str, settings: Mapping[str, Any]) -> str:
    """The norm and what ``settings`` say, fit for a file name.

    Where characters are replaced or the name is cut, a hash keeps two names apart.
    """
    parts = _parts(settings)
    label = "-".join([norm, *map(_fit, parts)])[:MOST_CHARACTERS]
    if label != "-".join([norm, *parts]):
        exact = "\0".join([norm, *(f"{key}={settings[key]}" for key in sorted(settings))])
        label += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
    return label


def common_settings(settings: Iterable[Mapping[str, Any]]) -> Differences:
    """The settings that all of several arms share; none where there is one arm."""
    arms = list(settings)
    missing = object()
    return {
        key: value
        for key, value in (arms[0] if len(arms) > 1 else {}).items()
        if all(arm.get(key, missing) == value for arm in arms)
    }


def short_label(label: str, settings: Mapping[str, Any], left_out: Iterable[str]) -> str:
    """The label of a run with ``settings`` without the parts of those in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{_fit(_part(key, settings[key]))}", "", 1)
    return label


def norm_of_label(label: str, settings: Mapping[str, Any]) -> str:
    """The norm at the start of the label of a run with ``settings``."""
    parts = _parts(settings)
    return label.partition(f"-{_fit(parts[0])}")[0] if parts else label


def _parts(settings: Mapping[str, Any]) -> list[str]:
    """The parts of a label; those without a name come first."""
    keys = sorted(settings, key=lambda key: (_short(key) not in BY_VALUE, key))
    return [_part(key, settings[key]) for key in keys]


def _part(key: str, value: Any) -> str:
    """One setting: ``released``, ``alpha-fwd-0.95``, ``fp16``, ``no-share-all-embeddings``."""
    name = _short(key)
    if value is None:  # the recipe has another value, and the run that of the norm's own default
        return f"default-{name}"
    if isinstance(value, str) and name in BY_VALUE:
        return value
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{name}-{value}"


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-").removeprefix("norm-")


def _fit(part: str) -> str:
    """A part of a label, fit for a file name."""
    return UNUSUAL.sub("-", part).strip("-")


# --- its stages ----------------------------------------------------------------------------------
#
# A key is a digest of the key before it and of what identifies the stage's command, so that a stage
# is done again where its own command, or anything before it, has changed. Paths inside the run's
# folder and that of its data do not count: a run may be moved.

PREPARE = "prepare"
"""The stage that makes the data, which several runs share: from raw text to binary files."""
PLUGIN = ("-m", "norm_plugin")


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        key: under which it counts as done.
        command: what is run, in the root of the checkout, without Python.
        product: the file that it makes.
        output: the file that its stdout becomes; None where that goes to the log.
        check: what :func:`norm_plugin.experiments.runner.check_product` is given before the stage
            counts as done.
        later: the stages that rest on it.
    """

    name: str
    key: str
    command: tuple[str, ...]
    product: Path
    output: Path | None = None
    check: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def data_command(spec: RunSpec) -> tuple[str, ...]:
    """The command of data preparation, which leaves out what is done."""
    command = (*PYTHON, *spec.preparation)
    if not os.path.isabs(spec.preparation[0]):
        return command
    # outside the checkout, it imports the helpers of data-prep
    return ("env", f"PYTHONPATH={python_path(ROOT / 'data-prep', ROOT)}", *command)


def data_key(spec: RunSpec) -> str:
    """Of the data as it is, and of how it was prepared."""
    return next_key(_digest_of_data(spec), [a for a in spec.preparation if a != str(spec.data)])


def _digest_of_data(spec: RunSpec) -> str:
    """Of the manifest of the prepared data; empty where there is none."""
    manifest = spec.data / "manifest.json"
    if not manifest.is_file():
        return ""
    named = f"{manifest.name} {hashlib.sha256(manifest.read_bytes()).hexdigest()}"
    return hashlib.sha256(named.encode()).hexdigest()


def next_key(key: str, arguments: Iterable[str]) -> str:
    """The key of a stage that these arguments identify, after stages with ``key``."""
    return hashlib.sha256("\0".join([key, *arguments]).encode()).hexdigest()


def run_stages(spec: RunSpec) -> list[Stage]:
    """The stages of a run after its data is prepared, in order."""
    averaged = spec.checkpoint == AVERAGE
    evaluation, module, flags = spec.evaluation
    scored = tuple(f"{name}{end}" for name in (evaluation, "score") for end in ("", "-folded"))
    sources = json.dumps(spec.sources, sort_keys=True) if spec.sources else ""
    user_dir = () if spec.user_dir is None else ("--user-dir", str(spec.user_dir))

    key = next_key(sources + _digest_of_data(spec), ("train", *spec.identity))
    stages = [
        Stage(
            "train",
            key,
            _training(spec),
            spec.checkpoints / "checkpoint_last.pt",
            check=("training", str(spec.checkpoints), *spec.averaging),
            later=(*(["average"] if averaged else []), *scored),
        )
    ]
    if averaged:
        key = next_key(key, ("average", *spec.averaging))
        files = ("--inputs", str(spec.checkpoints), "--output", str(spec.evaluated))
        command = (*PLUGIN, "average", *files, *user_dir, *spec.averaging)
        stages.append(Stage("average", key, command, spec.evaluated, later=scored))

    key = next_key(key, (evaluation, *flags))
    log = spec.folder / f"{evaluation}{spec.variant}.log"
    where = ("--user-dir", str(spec.user_dir or "norm_plugin"), "--gen-subset", "test")
    data = (str(spec.data / "bin"), *where, "--path", str(spec.evaluated))
    stages.append(
        Stage(
            f"{evaluation}{spec.variant}",
            key,
            ("-m", *module.split(), *data, *flags),
            log,
            output=log,
            check=("evaluation", str(log), str(spec.data), spec.metric),
            later=(f"score{spec.variant}",),
        )
    )

    named = ["--experiment", spec.experiment, "--norm", f"{spec.label}{spec.variant}"]
    named += ["--seed", str(spec.seed)]
    named += ["--differs", json.dumps(spec.differs, sort_keys=True)] if spec.differs else []
    key = next_key(key, ("score", *named))
    command = (
        *(*PLUGIN, "result", *named, "--metric", spec.metric),
        *(("--sources", json.dumps(spec.sources)) if spec.sources else ()),
        *("--checkpoint", str(spec.evaluated)),
        *("--last", str(spec.checkpoints / "checkpoint_last.pt"), *user_dir),
        *("--log", str(log), "--data", str(spec.data)),
        *("--train-log", str(spec.log_of("train"))),
        *("--memory", str(spec.stages / "train.memory")),
        *("--out", str(spec.results)),
    )
    return [*stages, Stage(f"score{spec.variant}", key, command, spec.result)]


def _training(spec: RunSpec) -> tuple[str, ...]:
    """What only shows the training, or depends on the job, does not identify it."""
    unkeyed, module = [], "fairseq_cli.train"
    if spec.tensorboard:
        unkeyed += ["--tensorboard-logdir", str(spec.folder / "tensorboard")]
    if spec.srun:
        # fairseq asks Slurm for the rest; the port must be one that no other job on the node takes
        port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
        unkeyed += ["--distributed-port", str(port)]
        if "--cpu" in spec.training:
            module = "norm_plugin worker"
    if spec.pretrained is not None:  # the folder of the run is named after its content
        unkeyed += ["--finetune-from-model", str(spec.pretrained)]
    where = ("--save-dir", str(spec.checkpoints))
    return ("-m", *module.split(), str(spec.data / "bin"), *unkeyed, *spec.training, *where)


def has_content(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0
