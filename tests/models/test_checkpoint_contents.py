"""What trainings store: torch's safe loader reads it, and the training resumes."""

from __future__ import annotations

import classifier_run
import pytest
import torch
from classifier_run import FLAGS, write_sentences
from composed import train_by_fairseq
from fairseq import checkpoint_utils

from characters import command as lm_command
from characters import write_text
from commands import generate
from in_process import everywhere, train_here

BLEU = (
    *("--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 8}', "--max-update", 2),
    *("--eval-bleu-detok", "moses", "--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu"),
    "--maximize-best-checkpoint-metric",
)
"""The flags with which fairseq trains IWSLT14."""
SCORED = ("--report-acc-and-f1", "--best-checkpoint-metric", "f1", "--patience", "2")


def stored(folder):
    """The checkpoint, read by the safe loader."""
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


def test_a_training_with_bleu_is_read_and_resumed(monkeypatch, toy, tmp_path) -> None:
    train_here(monkeypatch, toy, tmp_path, *everywhere("powernorm"), *BLEU)
    meters = stored(tmp_path)["extra_state"]["metrics"]["valid"]
    counts = {name: values["sum"] for _, name, kind, values in meters if kind == "AverageMeter"}
    assert len(counts["_bleu_counts"]) == 4
    assert len(generate(toy, tmp_path / "checkpoint_last.pt", "--max-len-b", 5)) == 40
    more = (*BLEU, "--max-update", 3)
    trainer = train_here(monkeypatch, toy, tmp_path, *everywhere("powernorm"), *more)
    assert trainer.get_num_updates() == 3


OPTIONS = {
    "plateau": ("--lr-scheduler", "reduce_lr_on_plateau"),
    "ema": ("--store-ema", "--ema-fp32"),
    "adafactor": ("--optimizer", "adafactor", "--report-accuracy"),
    "nag": ("--optimizer", "nag", "--lr-scheduler", "cosine", "--best-checkpoint-metric", "ppl"),
    "rdrop": ("--criterion", "label_smoothed_cross_entropy_with_rdrop", "--rdrop-alpha", 1),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_translation(monkeypatch, toy, tmp_path, options) -> None:
    train_here(monkeypatch, toy, tmp_path, *everywhere("powernorm"), "--max-update", 1, *options)
    assert stored(tmp_path)["optimizer_history"][-1]["num_updates"] == 1
    checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint_last.pt")])


ADAPTIVE = ("--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "8,12")


def test_language_model(tmp_path) -> None:
    data = write_text(tmp_path / "bin")
    flags = ("--ddp-backend", "legacy_ddp", "--decoder-layers", 1, "--max-update", 1)
    train_by_fairseq(*lm_command(data, *ADAPTIVE, *flags, "--save-dir", tmp_path))
    assert stored(tmp_path)["optimizer_history"][-1]["criterion_name"] == "AdaptiveLoss"


def test_classifier_with_scores_of_scikit_learn(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(classifier_run, "LABELS", ["0", "1"])  # F1 reads the names as numbers
    data = write_sentences(tmp_path / "data")
    train_by_fairseq(data, *FLAGS, *SCORED, "--max-update", 1, "--save-dir", tmp_path)
    state = stored(tmp_path)["extra_state"]
    assert state["best"] == state["val_loss"]
