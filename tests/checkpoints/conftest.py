"""Small hand-made checkpoints in the form of fairseq's."""

from __future__ import annotations

import argparse
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import run_state, write_dictionaries, write_pairs

from readers import SCORED

SaveRun = Callable[..., Path]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty binarized pairs: five batches or so."""
    return write_pairs(write_dictionaries(tmp_path_factory.mktemp("data") / "bin"), 60)


@pytest.fixture
def save_checkpoint_file() -> SaveRun:
    """``save(path, weight=..., updates=...)`` writes a checkpoint as fairseq-train does."""

    def save(path: Path, updates: int = 1, extra_state: Any = None, **model: Any) -> Path:
        model = model or {"weight": torch.full((2, 3), float(updates))}
        cfg = {
            "common": {"seed": 1, "cpu": True, "tensorboard_logdir": "tb"},
            "model": argparse.Namespace(_name="tiny", save_dir="/home/someone/run", dropout=0.1),
            "checkpoint": {"save_dir": "/home/someone/run", "best_checkpoint_metric": "loss"},
        }
        state = {
            "args": None,
            "cfg": cfg,
            "model": OrderedDict(model),
            "optimizer_history": [{"num_updates": updates}],
            "extra_state": extra_state or {"train_iterator": {"epoch": 2}},
            "last_optimizer_state": {"exp_avg": torch.ones(2, 3)},
        }
        torch.save(state, path)
        return path

    return save


@pytest.fixture
def truncate() -> Callable[[Path], Path]:
    """Keep only the first half of a file, as a copy that was killed does."""

    def cut(path: Path) -> Path:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        return path

    return cut


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A prepared corpus, as far as the commands look at it."""
    folder = tmp_path_factory.mktemp("prepared")
    write_pairs(write_dictionaries(folder / "bin"), 20)
    (folder / "raw").mkdir()
    shutil.copy(SCORED / "reference.de", folder / "raw" / "test.de")
    (folder / "manifest.json").write_text(json.dumps({"source": "en", "target": "de"}))
    return folder


@pytest.fixture(scope="module")
def harmless(prepared):
    """The content of a checkpoint that every command reads."""
    return run_state(
        prepared / "bin",
        *("--norm-type=powernorm", "--norm-layer-scale-groups=0", "--norm-warmup-updates=2"),
        "--norm-placement=pre",
    )
