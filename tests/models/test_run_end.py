"""A run that is stopped and resumed ends where one does that is never stopped."""

from __future__ import annotations

import shutil
import sys

import fairseq_cli.train
import pytest
import torch

from in_process import train_here
from norm_plugin.models import resuming
from norm_plugin.models.resuming import COUNTED, PATIENCE, should_stop_early

# With a learning rate of 0 no validation after the first one is better.
SAME_LOSS = ("--lr", 0, "--patience", 3, "--dropout", 0)


def train_once(monkeypatch, data, folder, *flags):
    """Train in a process of its own, as far as fairseq's counts go; return the last checkpoint."""
    for name in COUNTED:
        monkeypatch.delattr(fairseq_cli.train.should_stop_early, name, raising=False)
    train_here(monkeypatch, data, folder, "--no-epoch-checkpoints", *flags)
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


ENDS = {
    "updates": ("--max-update", 5),
    "updates, at the end of an epoch": ("--max-update", 8),
    "epochs": ("--max-epoch", 1),
    "hours": ("--stop-time-hours", 1e-9),
    "patience": SAME_LOSS,
}


@pytest.mark.parametrize("flags", ENDS.values(), ids=ENDS)
def test_a_run_that_has_ended_trains_nothing_more(flags, toy, tmp_path, monkeypatch):
    ended = train_once(monkeypatch, toy, tmp_path, *flags)
    for _ in range(2):  # as after a kill before whoever started the run could note its end
        again = train_once(monkeypatch, toy, tmp_path, *flags)
        assert again["optimizer_history"] == ended["optimizer_history"]
        assert all(torch.equal(again["model"][name], w) for name, w in ended["model"].items())


def test_a_later_end_trains_on(toy, tmp_path, monkeypatch):
    train_once(monkeypatch, toy, tmp_path, "--max-update", 5)
    later = ("--stop-time-hours", 9, "--max-update", 7)
    further = train_once(monkeypatch, toy, tmp_path, *later)
    assert further["optimizer_history"][-1]["num_updates"] == 7


@pytest.mark.parametrize("how", ["--reset-optimizer", "--finetune-from-model"])
def test_a_new_start_counts_its_own_updates(how, toy, tmp_path, monkeypatch):
    flags = ("--max-update", 3, "--stop-time-hours", 1)
    train_once(monkeypatch, toy, tmp_path / "first", *flags)
    path = tmp_path / "first" / "checkpoint_last.pt"
    start = (how, path) if how == "--finetune-from-model" else ("--restore-file", path, how)
    second = train_once(monkeypatch, toy, tmp_path / "second", *flags, *start)
    assert second["optimizer_history"][-1]["num_updates"] == 3


def epochs_and_count(state):
    """Return the epochs of a checkpoint, and how many of the last ones were not better."""
    state = state["extra_state"]
    return state["train_iterator"]["epoch"] - 1, state[PATIENCE]["num_runs"]


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_patience_counts_on(stopped_after, toy, tmp_path, monkeypatch):
    before = train_once(monkeypatch, toy, tmp_path, *SAME_LOSS, "--max-epoch", stopped_after)
    assert epochs_and_count(before) == (stopped_after, stopped_after - 1)
    after = train_once(monkeypatch, toy, tmp_path, *SAME_LOSS, "--max-epoch", 9)
    assert epochs_and_count(after) == (4, 3)


@pytest.fixture(scope="module")
def impatient(toy, tmp_path_factory):
    """The folder of a run that patience has ended."""
    folder = tmp_path_factory.mktemp("impatient")
    with pytest.MonkeyPatch.context() as patch:
        ended = train_once(patch, toy, folder, *SAME_LOSS, "--max-epoch", 9)
    assert epochs_and_count(ended) == (4, 3)
    return folder


@pytest.mark.parametrize(
    ("flags", "trained"),
    [(("--patience", 5), (6, 5)), (("--reset-dataloader",), (1, 4)), (("--reset-meters",), (8, 3))],
    ids=["larger patience", "data from the start", "counted anew"],
)
def test_more_patience_trains_on(flags, trained, impatient, toy, tmp_path, monkeypatch):
    shutil.copytree(impatient, tmp_path / "run")
    more = train_once(monkeypatch, toy, tmp_path / "run", *SAME_LOSS, "--max-epoch", 9, *flags)
    assert epochs_and_count(more) == trained


def test_the_count_is_that_of_the_program(monkeypatch):
    """``python -m fairseq_cli.train`` runs a second copy of the module, named __main__."""
    assert should_stop_early() is fairseq_cli.train.should_stop_early

    def of_the_program():
        pass

    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "should_stop_early", of_the_program, raising=False)
    assert should_stop_early() is of_the_program
    monkeypatch.setattr(resuming, "should_stop_early", lambda: None)  # one that does not train
    assert resuming.patience_count() is None
