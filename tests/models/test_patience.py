"""A run that is stopped and resumed ends after the same epoch as one that is not."""

from __future__ import annotations

import sys

import fairseq_cli.train
import pytest
import torch

from in_process import train_here
from norm_plugin.models import patience
from norm_plugin.models.patience import COUNTED, KEY, should_stop_early

# With a learning rate of 0 no validation after the first one is better.
SAME_LOSS = ("--lr", 0, "--patience", 3, "--dropout", 0, "--no-epoch-checkpoints")


def train(monkeypatch, data, folder, epochs, *flags):
    """In a process of its own, as far as fairseq's count goes; returns the last epoch's number."""
    for name in COUNTED:
        monkeypatch.delattr(fairseq_cli.train.should_stop_early, name, raising=False)
    train_here(monkeypatch, data, folder, *SAME_LOSS, "--max-epoch", epochs, *flags)
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)["extra_state"]
    return state["train_iterator"]["epoch"] - 1, state[KEY]["num_runs"]


@pytest.mark.parametrize("stopped_after", [1, 2, 3])
def test_the_count_goes_on(stopped_after, toy, tmp_path, monkeypatch):
    before = train(monkeypatch, toy, tmp_path, stopped_after)
    assert before == (stopped_after, stopped_after - 1)
    assert train(monkeypatch, toy, tmp_path, 9) == (4, 3)


@pytest.mark.parametrize(
    ("flags", "trained"),
    [
        ((), (4, 3)),
        (("--patience", 5), (6, 5)),
        (("--patience", -1), (9, 3)),
        (("--reset-dataloader",), (1, 4)),
    ],
    ids=["same command", "larger patience", "no patience", "data from the start"],
)
def test_a_run_that_has_ended_trains_only_what_is_asked(flags, trained, toy, tmp_path, monkeypatch):
    assert train(monkeypatch, toy, tmp_path, 9) == (4, 3)
    assert train(monkeypatch, toy, tmp_path, 9, *flags) == trained


def test_a_new_start_counts_anew(toy, tmp_path, monkeypatch):
    train(monkeypatch, toy, tmp_path, 3)
    assert train(monkeypatch, toy, tmp_path, 5, "--reset-meters")[1] == 1


def test_a_program_that_does_not_count_loads_the_checkpoint(monkeypatch):
    monkeypatch.setattr(patience, "should_stop_early", lambda: None)
    patience.count_on({KEY: {"best": 1.0, "num_runs": 2}}, cfg=None)
    assert patience.counted() is None


def test_the_function_is_that_of_the_program(monkeypatch):
    """``python -m fairseq_cli.train`` runs a second copy of the module, named __main__."""
    assert should_stop_early() is fairseq_cli.train.should_stop_early

    def of_the_program():
        pass

    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "should_stop_early", of_the_program, raising=False)
    assert should_stop_early() is of_the_program
