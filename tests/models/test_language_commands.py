"""fairseq's commands around a language model: train, resume, average, evaluate, continue, fold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from composed import train_by_fairseq

from characters import LETTERS, TINY, command
from norm_plugin.checkpoints.average import average_checkpoints
from norm_plugin.checkpoints.average import main as average
from norm_plugin.checkpoints.evaluate_lm import run as evaluate
from norm_plugin.checkpoints.fold import main as fold
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.language_model import NormTransformerLanguageModel
from norm_plugin.norms.identity import Identity

WORDS = {*LETTERS, "<unk>"}
SIZE = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
FOLDABLE = ("--norm-type", "batchnorm", "--norm-layer-scale-groups", 0, "--norm-placement", "pre")


def train(data, save_dir, *flags):
    """fairseq-train in this process; returns the weights."""
    flags = (*SIZE, "--save-dir", save_dir, "--no-epoch-checkpoints", *flags)
    train_by_fairseq(*command(data, *flags))
    return torch.load(save_dir / "checkpoint_last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    """Six updates with a checkpoint after every second."""
    folder = tmp_path_factory.mktemp("trained")
    every = ("--save-interval-updates", 2)
    train(text, folder, *FOLDABLE, *every, "--max-update", 6)
    return folder


def loss_of(path, text, *argv):
    """What evaluate-lm says of the test text."""
    flags = ["--path", path, "--tokens-per-sample", 12, "--gen-subset", "test", "--cpu"]
    return evaluate([str(word) for word in (text, *flags, "--num-workers", 0, *argv)])


def test_only_the_norms_of_the_decoder_are_compared(folder, tmp_path):
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    state["cfg"]["model"].norm_eps = 0.5
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(CommandError, match="eps of batchnorm of decoder-self, decoder-ffn"):
        average_checkpoints([folder / "checkpoint_last.pt", tmp_path / "other.pt"])


def test_average_evaluate_and_fold(text, folder, tmp_path, capsys):
    averaged, folded = tmp_path / "averaged.pt", tmp_path / "folded.pt"
    average(["--inputs", str(folder), "--last-updates", "2", "--output", str(averaged)])
    fold([str(averaged), "--output", str(folded)])
    printed = capsys.readouterr().out
    for site in ("decoder-self: batchnorm folded, 2 into 6", "decoder-ffn: batchnorm folded"):
        assert site in printed
    reason = "output_projection shares its weights"
    assert f"decoder-final: batchnorm is not folded: {reason}" in printed
    plain = loss_of(averaged, text, "--windows")
    *windows, speed, loss = capsys.readouterr().out.splitlines()[-len(plain.windows) - 2 :]
    first = plain.windows[0]
    assert windows[0] == f"Window {first.number}: {first.tokens} tokens, {first.bits:.4f} bits"
    assert speed.startswith(f"Evaluated {plain.tokens} tokens in ")
    assert loss == f"Loss (base 2): {plain.bits:.4f}, Perplexity: {2**plain.bits:.2f}"
    assert plain.tokens > 4 * 60 and 1 < plain.bits < 8  # 60 lines; hardly trained
    for other in (loss_of(averaged, text, "--fold-norms"), loss_of(folded, text)):
        assert other.tokens == plain.tokens
        assert other.bits == pytest.approx(plain.bits, rel=1e-5)  # in float32
    assert sum(window.tokens for window in plain.windows) == plain.tokens
    bits = sum(window.bits for window in plain.windows)
    # six digits of log p, and fairseq adds them in float32; a token more or less is 1e-3
    assert bits / plain.tokens == pytest.approx(plain.bits, abs=1e-5)
    # a first token that is not scored; with it, a window has the 12 positions that the model has
    begun = loss_of(averaged, text, "--add-bos-token", "--tokens-per-sample", 11)
    assert begun.tokens == plain.tokens
    hub = NormTransformerLanguageModel.from_pretrained(
        str(tmp_path), averaged.name, str(text), fold_norms=True
    )
    assert isinstance(hub.models[0].decoder.layers[0].final_layer_norm, Identity)
    assert set(hub.sample("a b c", beam=1).split()) <= WORDS
    assert hub.score("a b c")["positional_scores"].numel() == 3  # the end is not scored


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: (data / "dict.txt").unlink(), "dict.txt"),
        (lambda data: (data / "dict.txt").write_text("a 1\na 1\n"), "Duplicate word found"),
        (lambda data: (data / "dict.txt").write_text("a b\n"), "Incorrect dictionary format"),
        (lambda data: (data / "dict.txt").write_bytes(b"\xff 1\n"), "Incorrect encoding detected"),
        (lambda data: (data / "dict.txt").write_text("a 1\n"), "size mismatch"),
        (lambda data: (data / "test.idx").unlink(), "Dataset not found: test"),
        (lambda data: (data / "test.idx").write_bytes(b"x" * 99), "Index file doesn"),
        (lambda data: shutil.rmtree(data), "bin"),
    ],
)
def test_data_that_the_model_cannot_be_evaluated_on(damage, message, text, folder, tmp_path):
    data = Path(shutil.copytree(text, tmp_path / "bin"))
    damage(data)
    path = folder / "checkpoint_last.pt"
    match = f"(?s)cannot evaluate {path} on the test text of {data}: .*{message}"
    with pytest.raises(CommandError, match=match):
        evaluate([str(data), "--path", str(path), "--tokens-per-sample", "12", "--cpu"])


def test_what_evaluate_lm_cannot_read(text, folder, tmp_path):
    path = folder / "checkpoint_last.pt"
    missing, user_dir = tmp_path / "missing.pt", tmp_path / "leaving"
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text("raise SystemExit(0)\n")
    for argv, message in (
        ([], "--path is missing; give the checkpoint: --path FILE"),
        (["--path", str(missing)], f"Model file not found: {missing}"),
        (["--path", str(path), "--model-overrides", "{'a'"], "cannot evaluate .* was never closed"),
        (["--path", str(path), "--user-dir", str(user_dir)], "cannot be imported: SystemExit: 0"),
        (["--path", str(path), "--gen-subset", "dev"], "on the dev text .*not found: dev"),
    ):
        with pytest.raises(CommandError, match=message):
            evaluate([str(text), "--cpu", *argv])
