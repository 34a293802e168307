"""The loss of a trained model with running statistics and with those of the batch."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest
import torch
from tiny_run import run_state

from norm_plugin.checkpoints.building import build_model
from papers.theory import running_statistics
from papers.theory.claim import Options


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    """The corpus, with its training set as validation set, too."""
    folder = tmp_path_factory.mktemp("data") / "bin"
    shutil.copytree(corpus, folder)
    for file in list(folder.glob("train.*")):
        shutil.copy(file, folder / file.name.replace("train", "valid"))
    return folder


def measured(data, folder, **buffers):
    """The rows of a checkpoint whose running statistics are filled with these values."""
    state = run_state(data, "--norm-type=batchnorm", "--dropout=0.5", "--max-tokens=300")
    for name, tensor in state["model"].items():
        if (value := buffers.get(name.rpartition(".")[2])) is not None:
            tensor.fill_(value)
    path = folder / "checkpoint_last.pt"
    torch.save(state, path)
    options = Options((), main=(), checkpoints=(path,))
    return pd.DataFrame(running_statistics.measure_once(options)), path


def test_only_the_loss_of_inference_depends_on_the_running_statistics(data, tmp_path, monkeypatch):
    monkeypatch.setattr(running_statistics, "BATCHES", 2)
    frame, _ = measured(data, tmp_path)
    other, _ = measured(data, tmp_path, running_var=9.0)
    pd.testing.assert_series_equal(frame["batch"], other["batch"])
    assert (frame["running"] != other["running"]).all()
    assert set(frame["data"]) == {"training", "validation"}
    assert not frame.duplicated(["data", "seed"]).any()


def test_the_batches_are_those_of_a_split_and_no_sentence_is_twice(data, tmp_path):
    _, path = measured(data, tmp_path)
    _, cfg, task = build_model(path)
    ids = [s["id"] for s in running_statistics.first_batches(cfg, task, "valid")]
    assert torch.cat(ids).unique().numel() == sum(map(len, ids))
    assert sum(map(len, ids)) <= len(task.dataset("valid"))


@pytest.mark.parametrize(
    ("running", "expected"), [((2.0, 2.01), "yes"), ((0.9, 0.91), "no"), ((0.5, 2.0), "-")]
)
def test_the_interval_over_batches_decides(running, expected):
    row = {"norm": "batchnorm", "updates": 90, "data": "training", "batch": 1.5}
    frame = pd.DataFrame({**row, "seed": seed, "running": r} for seed, r in enumerate(running))
    assert [each["holds"] for each in running_statistics.verdicts(frame)] == [expected]
