"""RunSpec, the complete specification of a run, and what follows from it: names, folders, stages.

A spec is composed in a short child process, which imports hydra, fairseq and torch. The process
that supervises runs imports only the standard library.
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

PYTHON = [sys.executable]
"""The interpreter that runs the commands of a run; tests replace it."""
ROOT = Path(__file__).resolve().parents[2]
"""The checkout, where commands run."""
CONFIGS = ROOT / "configs"
"""The folder of the YAML files."""
Sources = Mapping[str, str]
"""The digest of each file of a user dir that a run depends on, by its path."""
AVERAGE, BEST = "average", "best"
"""Which checkpoint is evaluated: the average of the last ones, or the best in validation."""


@dataclass(frozen=True)
class RunSpec:
    """One run, composed and checked.

    Attributes:
        experiment: the folder of its results, such as ``multi30k_cpu``.
        label: the norm and what differs from the recipe, such as ``powernorm-released``.
        differs: the settings that differ from the recipe.
        metric: the name of its metric, a file of ``norm_lab/experiments/metrics/``.
        checkpoint: the checkpoint that is evaluated, AVERAGE or BEST.
        evaluation: the stage that evaluates the test set, its command, and the flags that affect
            the score.
        item: the prefix of the lines of its output that each report one item, and the name of the
            items; None if it prints no such lines.
        digits: decimal places of a score.
        training: the flags of ``fairseq-train``.
        identity: the same flags, but with the recipe's flags of logging, so that a change of
            logging does not make another run.
        averaging: the flags of ``norm-plugin average``.
        preparation: the command of data preparation.
        data: the folder of the prepared corpus.
        user_dir: the user's own ``--user-dir``.
        sources: the digests of the files of the user dir that the training depends on.
        pretrained: the checkpoint that is fine-tuned.
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
        """The folder of the run: checkpoints, translations, logs and stamps."""
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
        """The suffix of the names of stages and of the result if norms are folded."""
        return "-folded" if self.fold else ""

    @property
    def result(self) -> Path:
        """The file of its scores and settings."""
        return self.results / self.experiment / f"{self.label}{self.variant}-seed{self.seed}.json"

    @property
    def failure(self) -> Path:
        """The file that records a failure, in ``failed/`` beside the result."""
        return self.result.parent / "failed" / self.result.name

    @property
    def name(self) -> str:
        """The name that is shown: ``multi30k_cpu powernorm, seed 1``."""
        return f"{self.experiment} {self.label}{self.variant}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """The spec in types that JSON has."""
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
    """A value that was read from JSON, with tuples for its lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def changed_sources(before: Sources, now: Sources) -> list[str]:
    """The files that differ, or that only one of the two mappings has."""
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))


def python_path(*folders: Path) -> str:
    """PYTHONPATH with ``folders`` prepended."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([given] if given else [])])


def write_spec(spec: RunSpec, path: Path) -> None:
    """Write a spec, for the process that runs it."""
    path.write_text(json.dumps(spec.to_json()), encoding="utf-8")


def read_spec(path: Path) -> RunSpec:
    """Read what :func:`write_spec` has written."""
    return RunSpec.from_json(json.loads(path.read_text(encoding="utf-8")))


# --- the name of a run ---------------------------------------------------------------------------
#
# ``powernorm``, ``powernorm-released``, ``powernorm-layer-scale-groups-0``, ``adanorm-kaiming``.

Differences = dict[str, Any]

BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings that a label shows by their value alone; ``-name`` is the short form of ``_name``."""
LOGGING = (
    *("aim_repo", "aim_run_hash", "azureml_logging", "log_file", "log_format", "log_interval"),
    *("no_progress_bar", "tensorboard_logdir", "wandb_project"),
)
"""Keys of ``common`` that affect what is logged, not what is trained."""
MAX_LABEL_LENGTH = 120  # a file name may have 255 characters, and the label is only a part of it
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


def without_seed(flags: Sequence[str]) -> list[str]:
    """Flags of ``fairseq-train`` without ``--seed``, which are the same for all runs of an arm."""
    place = flags.index("--seed")
    return [*flags[:place], *flags[place + 2 :]]


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
    """A label for file names: the norm and the settings.

    If characters are replaced or the label is cut, a hash keeps labels distinct.
    """
    parts = _parts(settings)
    label = "-".join([norm, *map(_file_safe, parts)])[:MAX_LABEL_LENGTH]
    if label != "-".join([norm, *parts]):
        exact = "\0".join([norm, *(f"{key}={settings[key]}" for key in sorted(settings))])
        label += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
    return label


def common_settings(settings: Iterable[Mapping[str, Any]]) -> Differences:
    """The settings that several arms share; none for a single arm."""
    arms = list(settings)
    missing = object()
    return {
        key: value
        for key, value in (arms[0] if len(arms) > 1 else {}).items()
        if all(arm.get(key, missing) == value for arm in arms)
    }


def short_label(label: str, settings: Mapping[str, Any], left_out: Iterable[str]) -> str:
    """``label`` of a run with ``settings``, without the settings in ``left_out``."""
    for key in left_out:
        label = label.replace(f"-{_file_safe(_part(key, settings[key]))}", "", 1)
    return label


def norm_of_label(label: str, settings: Mapping[str, Any]) -> str:
    """The norm at the start of the label of a run with ``settings``."""
    parts = _parts(settings)
    return label.partition(f"-{_file_safe(parts[0])}")[0] if parts else label


def _parts(settings: Mapping[str, Any]) -> list[str]:
    """The parts of a label; settings that are shown by their value alone come first."""
    keys = sorted(settings, key=lambda key: (_short_key(key) not in BY_VALUE, key))
    return [_part(key, settings[key]) for key in keys]


def _part(key: str, value: Any) -> str:
    """One setting: ``released``, ``alpha-fwd-0.95``, ``fp16``, ``no-share-all-embeddings``."""
    name = _short_key(key)
    if value is None:  # the recipe has another value, and the run the norm's default
        return f"default-{name}"
    if isinstance(value, str) and name in BY_VALUE:
        return value
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{name}-{value}"


def _short_key(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-").removeprefix("norm-")


def _file_safe(part: str) -> str:
    """A part of a label without the characters that file names should not have."""
    return UNUSUAL.sub("-", part).strip("-")


# --- its stages ----------------------------------------------------------------------------------
#
# The key of a stage is a digest of the key before it and of the stage's command. A stage runs again
# if its command, or anything before it, has changed. Paths inside the folders of the run and of its
# data are not part of a key, so a run may be moved.

PREPARE = "prepare"
"""The stage that prepares the data, which several runs share."""
PLUGIN = ("-m", "norm_plugin")


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        key: identifies the command and its inputs.
        command: the arguments of Python; it runs in the root of the checkout.
        product: the file that it makes.
        output: the file that its stdout is written to; None for the log.
        check: the arguments of :func:`norm_lab.experiments.runner.check_product`, which is
            called before the stage counts as done.
        later: the stages that depend on it.
    """

    name: str
    key: str
    command: tuple[str, ...]
    product: Path
    output: Path | None = None
    check: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def data_command(spec: RunSpec) -> tuple[str, ...]:
    """The command of data preparation, which skips what is done."""
    command = (*PYTHON, *spec.preparation)
    if not os.path.isabs(spec.preparation[0]):
        return command
    # a program outside the checkout imports the helpers of data-prep
    return ("env", f"PYTHONPATH={python_path(ROOT / 'data-prep', ROOT)}", *command)


def data_key(spec: RunSpec) -> str:
    """The key of the prepared data: its checksums and the command that made it."""
    return next_key(_digest_of_data(spec), [a for a in spec.preparation if a != str(spec.data)])


def _digest_of_data(spec: RunSpec) -> str:
    """The digest of the manifest of the prepared data; empty if there is none."""
    manifest = spec.data / "manifest.json"
    if not manifest.is_file():
        return ""
    named = f"{manifest.name} {hashlib.sha256(manifest.read_bytes()).hexdigest()}"
    return hashlib.sha256(named.encode()).hexdigest()


def next_key(key: str, arguments: Iterable[str]) -> str:
    """The key of a stage with these arguments; ``key`` is that of the stage before it."""
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
    """The command of the training. ``unkeyed`` flags do not identify it: logging, ports, paths."""
    unkeyed, module = [], "fairseq_cli.train"
    if spec.tensorboard:
        unkeyed += ["--tensorboard-logdir", str(spec.folder / "tensorboard")]
    if spec.srun:
        # fairseq reads the rest from Slurm; no other job on the node may have the same port
        port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
        unkeyed += ["--distributed-port", str(port)]
        if "--cpu" in spec.training:
            module = "norm_plugin worker"
    if spec.pretrained is not None:  # its digest is among the settings, and so in the label
        unkeyed += ["--finetune-from-model", str(spec.pretrained)]
    where = ("--save-dir", str(spec.checkpoints))
    return ("-m", *module.split(), str(spec.data / "bin"), *unkeyed, *spec.training, *where)


def has_content(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return path.is_file() and path.stat().st_size > 0
