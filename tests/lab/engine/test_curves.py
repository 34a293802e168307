"""The curves of a log against the lines that fairseq wrote into it."""

from __future__ import annotations

from norm_lab.engine.training_log import curves_of_log

BEGINNING = "2026-01-01 12:00:00 | INFO | "
LOG = f"""\
{BEGINNING}fairseq.tasks.translation | [en] dictionary: 624 types
{BEGINNING}train_inner | epoch 001: 25 / 30 loss=10.5, nll_loss=10, num_updates=25, wall=9
{BEGINNING}valid | epoch 001 | valid on 'valid' subset | loss 9.75 | nll_loss 8.5 | num_updates 30
{BEGINNING}train | epoch 001 | loss 10.25 | nll_loss 9.5 | num_updates 30 | lr 0.001 | wall 12
{BEGINNING}train | epoch 002 | loss 9.5 | num_updates 60 | wall 24
{BEGINNING}train | epoch 002 | loss 9.1 | nu
{BEGINNING}train | epoch 002 | loss 9.25 | num_updates 60 | wall 3
{BEGINNING}valid | epoch 002 | valid on 'valid' subset | loss nan | num_updates 60 | best_loss 9
"""


def test_losses_by_update_and_the_last_of_an_epoch_trained_twice(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(LOG)
    assert curves_of_log(log) == {
        "train": [
            {"epoch": 1, "updates": 30, "loss": 10.25, "nll_loss": 9.5},
            {"epoch": 2, "updates": 60, "loss": 9.25},
        ],
        "valid": [
            {"epoch": 1, "updates": 30, "loss": 9.75, "nll_loss": 8.5},
            {"epoch": 2, "updates": 60},
        ],
        "train_inner": [{"epoch": 1, "updates": 25, "loss": 10.5, "nll_loss": 10.0}],
    }


def test_a_log_without_losses_has_none(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("training on 1 devices\n")
    assert curves_of_log(log) == {"train": [], "valid": [], "train_inner": []}
