"""The curves of a log against what fairseq wrote into it."""

from __future__ import annotations

from norm_plugin.experiments.curves import read_curves

LOG = """\
{'_name': None, 'common': {'seed': 1}}
epoch 001: training
{"epoch": 1, "update": 0.5, "loss": "10.5", "num_updates": "15"}
{"epoch": 1, "train_loss": "10.25", "train_nll_loss": "9.5", "train_num_updates": "30", \
"train_wall": "12"}
{"epoch": 1, "valid_loss": "9.75", "valid_nll_loss": "8.5", "valid_num_updates": "30"}
{"epoch": 2, "train_loss": "9.5", "train_num_updates": "60", "train_wall": "24"}
{"epoch": 2, "train_lo
{"epoch": 2, "train_loss": "9.25", "train_num_updates": "60", "train_wall": "3"}
{"epoch": 2, "valid_loss": "nan", "valid_num_updates": "60"}
"""


def test_losses_by_update_and_the_last_of_an_epoch_trained_twice(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(LOG)
    assert read_curves(log) == {
        "train": [
            {"epoch": 1, "updates": 30, "loss": 10.25, "nll_loss": 9.5, "wall": 12.0},
            {"epoch": 2, "updates": 60, "loss": 9.25, "wall": 3.0},
        ],
        "valid": [
            {"epoch": 1, "updates": 30, "loss": 9.75, "nll_loss": 8.5},
            {"epoch": 2, "updates": 60},
        ],
    }


def test_a_log_without_losses_has_none(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("training on 1 devices\n")
    assert read_curves(log) == {"train": [], "valid": []}
