"""What a stage made is whole, or one line says why not."""

from __future__ import annotations

import json

import pytest
import torch

from norm_lab.engine.failure import explain
from norm_lab.engine.finish import check_checkpoints, run_in_process
from norm_lab.engine.process import CommandFailedError
from norm_lab.engine.state import DIVERGED, FAILED
from norm_lab.metrics import find_metric
from norm_plugin.io.command_line import CommandError

LOG = """T-0\tein hund
D-0\t-0.1\tein hund
T-1\tzwei
D-1\t-0.2\tzwei
Generate test with beam=5: BLEU4 = 9.99, 1.0/1.0/1.0/1.0 (BP=1.000, ratio=1.0, syslen=3, reflen=3)
"""


@pytest.fixture
def checkpoints(tmp_path):
    """A finished training of three epochs."""
    for name in ("1", "2", "3", "_last"):
        torch.save({"model": {"w": torch.ones(1)}}, tmp_path / f"checkpoint{name}.pt")
    return tmp_path


def check_training(folder, *averaging):
    check_checkpoints(folder, averaging)


def test_a_whole_training(checkpoints):
    check_training(checkpoints, "--last-epochs", "3")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: (folder / "checkpoint_last.pt").unlink(),
            r"checkpoint_last.pt: No such file",
        ),
        (lambda folder: (folder / "checkpoint2.pt").unlink(), "3 epoch .* are needed, but 2 "),
        (
            lambda folder: (folder / "checkpoint2.pt").write_bytes(b"PK"),
            "checkpoint2.pt is truncated or damaged",
        ),
    ],
)
def test_a_training_that_lacks_something(spoil, message, checkpoints):
    spoil(checkpoints)
    with pytest.raises(CommandError, match=message):
        check_training(checkpoints, "--last-epochs", "3")


def test_the_kind_of_checkpoint_counts(checkpoints):
    with pytest.raises(CommandError, match="2 update checkpoints are needed, but 0 are"):
        check_training(checkpoints, "--last-updates", "2")
    for updates in (13, 26):
        name = checkpoints / f"checkpoint_1_{updates}.pt"
        (checkpoints / f"checkpoint{updates // 13}.pt").rename(name)
    check_training(checkpoints, "--last-updates", "2")


@pytest.fixture
def data(tmp_path):
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/test.de").write_text("ein hund\nzwei\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"target": "de"}))
    return tmp_path


def check_translation(data, text):
    (data / "generate.log").write_text(text)
    find_metric("bleu").check_log(data / "generate.log", data)


def test_a_translation_of_every_sentence(data):
    check_translation(data, LOG)


def test_a_translation_that_lacks_sentences(data):
    with pytest.raises(CommandError, match="is truncated"):
        check_translation(data, LOG.rpartition("Generate")[0])
    with pytest.raises(CommandError, match=r"has 1 sentences, but .*test.de has 2"):
        check_translation(
            data, "".join(line for line in LOG.splitlines(True) if "-1\t" not in line)
        )


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (LOG.replace("-0.2", "nan"), DIVERGED),
        (LOG.rpartition("Generate")[0], FAILED),
    ],
)
def test_scores_that_are_not_finite_are_a_divergence(text, state, data):
    with pytest.raises(CommandError) as refused:
        check_translation(data, text)
    log = data / "generate.log"
    failed = CommandFailedError("exit status 1", [f"error: {refused.value}"])
    assert explain("generate", failed, log).state == state


def test_a_verb_of_the_package_gets_its_words(checkpoints):
    """``finish`` runs its commands in one process."""
    last = checkpoints / "checkpoint_last.pt"
    last.write_bytes(b"")
    run_in_process(("-m", "norm_plugin", "repair", str(checkpoints)))
    assert not last.exists()  # and none of the others holds a whole state
