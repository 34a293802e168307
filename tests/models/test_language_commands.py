"""fairseq's commands around a language model: train, resume, average, evaluate, continue, fold."""

from __future__ import annotations

import pytest
import torch
from composed import train_by_fairseq

from characters import LETTERS, TINY, command, write_text
from norm_plugin.checkpoints.average import average_checkpoints
from norm_plugin.checkpoints.average import main as average
from norm_plugin.checkpoints.fold import main as fold
from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.metrics.language_model import main as evaluate
from norm_plugin.experiments.metrics.language_model import read_evaluation
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
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("characters") / "bin")


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    """Six updates with a checkpoint after every second."""
    folder = tmp_path_factory.mktemp("trained")
    every = ("--save-interval-updates", 2)
    train(text, folder, *FOLDABLE, *every, "--max-update", 6)
    return folder


def loss_of(path, text, out, capsys, *argv):
    """What fairseq-eval-lm says of the test text."""
    capsys.readouterr()
    flags = ["--path", path, "--tokens-per-sample", 12, "--gen-subset", "test", "--cpu"]
    flags += ["--num-workers", 0, *argv]
    assert evaluate([str(word) for word in (text, *flags)]) == 0
    out.write_text(capsys.readouterr().out)
    return read_evaluation(out)


def test_a_run_goes_on_with_its_own_norms_alone(text, folder, tmp_path):
    stored = ("--restore-file", folder / "checkpoint_last.pt")
    with pytest.raises(ValueError, match="stored batchnorm, given rmsnorm"):
        train(text, tmp_path, *stored, "--norm-type", "rmsnorm", "--max-update", 7)


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
    assert "decoder-final: batchnorm stays: output_projection shares its weights" in printed
    plain = loss_of(averaged, text, tmp_path / "log", capsys)
    assert plain.tokens > 4 * 60 and 1 < plain.bits < 8  # 60 lines; hardly trained
    for other in (
        loss_of(averaged, text, tmp_path / "log", capsys, "--fold-norms"),
        loss_of(folded, text, tmp_path / "log", capsys),
    ):
        assert other.tokens == plain.tokens
        assert other.bits == pytest.approx(plain.bits, abs=2e-4)  # of four printed digits
    hub = NormTransformerLanguageModel.from_pretrained(
        str(tmp_path), averaged.name, str(text), fold_norms=True
    )
    assert isinstance(hub.models[0].decoder.layers[0].final_layer_norm, Identity)
    assert set(hub.sample("a b c", beam=1).split()) <= WORDS
    assert hub.score("a b c")["positional_scores"].numel() == 3  # the end is not scored
