"""RunSpec, the complete specification of a run, and the folders and names derived from it.

``run.json`` in the folder of a run is its spec; ``norm-plugin job FOLDER`` executes it. The process
that executes runs imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.run.flags import Configuration
from norm_lab.run.record import Arm, Preparation, Value
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json

RUN_FILE = "run.json"
PATHS = ("data", "work", "results", "user_dir", "pretrained")
Sources = Mapping[str, str]
"""The digest of each file of a user dir that a run depends on, by its path."""


@dataclass(frozen=True)
class RunSpec:
    """One run, composed and checked.

    Attributes:
        experiment: the folder of its results, such as ``multi30k_cpu``.
        arm: its norm, placement, and settings that differ from the experiment's.
        metric: the name of its metric, a file of ``norm_lab/metrics/``, which determines how the
            model is evaluated.
        settings: the settings of the training and of the evaluation, by fairseq's groups; those
            that affect only what is logged are the experiment's.
        logging: settings of ``common`` that affect only what is logged, and do not identify the
            run.
        subword: the subword method; empty for the default.
        preparation: how the corpus is prepared.
        data: the folder of the prepared corpus.
        user_dir: the user's own ``--user-dir``.
        sources: the digests of the files of the user dir that the training depends on.
        pretrained: the checkpoint to fine-tune.
        overrides: the overrides that request it, in hydra's syntax; they do not identify it.
        fold: evaluate with folded norms.
        srun: train by srun, in a Slurm job.
    """

    experiment: str
    arm: Arm
    seed: int
    metric: str
    settings: Configuration
    logging: Mapping[str, Value]
    subword: str
    preparation: Preparation
    data: Path
    work: Path
    results: Path
    user_dir: Path | None
    sources: Sources
    pretrained: Path | None
    overrides: tuple[str, ...] = field(compare=False)
    fold: bool
    srun: bool
    tensorboard: bool

    @property
    def label(self) -> str:
        """The name of the arm in files: ``powernorm-released``."""
        return self.arm.file_name()

    @property
    def on_cpu(self) -> bool:
        """Whether it is trained on the CPU."""
        return bool(self.settings["common"].get("cpu"))

    @property
    def folder(self) -> Path:
        """The folder of the run: checkpoints, translations, logs and status."""
        return self.work / "runs" / self.experiment / f"{self.label}-seed{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """The ``--save-dir`` of the training."""
        return self.folder / "checkpoints"

    def log_of(self, stage: str) -> Path:
        """Return the file with the full output of a stage."""
        return self.folder / "logs" / f"{stage}.log"

    @property
    def evaluated(self) -> Path:
        """The checkpoint to evaluate."""
        if find_metric(self.metric).checkpoint == AVERAGE:
            return self.folder / "averaged.pt"
        return self.checkpoints / "checkpoint_best.pt"

    @property
    def evaluation_log(self) -> Path:
        """The output of the evaluation."""
        return self.folder / f"{find_metric(self.metric).stage}{self.folded_suffix}.log"

    @property
    def folded_suffix(self) -> str:
        """The suffix of the names of stages and of the result if norms are folded."""
        return "-folded" if self.fold else ""

    @property
    def evaluated_label(self) -> str:
        """The name of the arm in results: the label, and whether norms are folded."""
        return f"{self.label}{self.folded_suffix}"

    @property
    def result(self) -> Path:
        """The file of its result, or of its failure."""
        return self.results / self.experiment / result_name(self.evaluated_label, self.seed)

    @property
    def name(self) -> str:
        """The name for messages: ``multi30k_cpu powernorm, seed 1``."""
        return f"{self.experiment} {self.evaluated_label}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Return the spec in types that JSON has."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    def identity(self) -> dict[str, Any]:
        """Return what identifies the run, in types that JSON has: no folders, and no logging."""
        elsewhere = (*PATHS, "overrides", "logging", "srun", "tensorboard")
        content = {key: value for key, value in self.to_json().items() if key not in elsewhere}
        options = {k: v for k, v in self.preparation.options.items() if k != "raw"}
        return content | {"preparation": {**content["preparation"], "options": options}}

    @classmethod
    def read(cls, folder: Path) -> RunSpec:
        """Return the run in a folder, which may have been moved.

        Raises:
            CommandError: it has no ``run.json``, or one that is damaged or of another version.
        """
        path = folder / RUN_FILE
        content = read_json(path)
        try:
            content |= {key: Path(content[key]) for key in PATHS if content[key] is not None}
            content["arm"] = Arm(**content["arm"])
            content["preparation"] = Preparation(**content["preparation"])
            content["overrides"] = tuple(content["overrides"])
            return cls(**content)
        except (KeyError, TypeError) as error:
            raise CommandError(
                f"{path} is damaged or of another version ({error}); repeat the command that began "
                "the run"
            ) from error

    @classmethod
    def read_in_place(cls, folder: Path) -> RunSpec:
        """Return the run in a folder that is to be executed.

        Raises:
            CommandError: as :meth:`read`, or the folder is a copy, or was moved.
        """
        spec = cls.read(folder)
        if folder.resolve() != spec.folder.resolve():
            raise CommandError(
                f"{folder} is a copy, or was moved: its {RUN_FILE} is of {spec.folder}, where this "
                "would write; repeat the sweep or run with --work of the new place"
            )
        return spec


def result_name(norm: str, seed: int) -> str:
    """Return the file name of a result: ``powernorm-seed1.json``."""
    return f"{norm}-seed{seed}.json"


def changed_sources(before: Sources, now: Sources) -> list[str]:
    """Return the files that differ, or that only one of the two mappings has."""
    return sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
