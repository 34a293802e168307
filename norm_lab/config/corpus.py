"""The prepared corpus of a run: its folder, and the command that prepares it."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from norm_lab.config.experiments import Experiment
from norm_lab.config.options import absolute_path
from norm_lab.run.record import Preparation, Value


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
) -> tuple[Path, Preparation]:
    """Return the folder of the prepared corpus, and how it is prepared."""
    name = experiment.data_name
    options: dict[str, Value] = {}
    if raw is not None:
        options["raw"] = str(raw)
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
    corpora = os.environ.get("NORM_DATA_DIR")
    corpus = Path(experiment.corpus).stem.replace("_", "-")
    name = experiment.raw or corpus
    folder = absolute_path(corpora) / name if corpora else None
    return folder if folder is not None and folder.is_dir() else None
