"""``--fold-norms`` in fairseq's commands and the hub, and folded checkpoints: same translations."""

from __future__ import annotations

import ast
import logging
import sys

import fairseq_cli.generate
import fairseq_cli.interactive
import fairseq_cli.validate
import pytest
import torch
from fairseq import checkpoint_utils, options

from commands import PLUGIN
from in_process import train_here
from norm_plugin.checkpoints.fold import fold_checkpoint
from norm_plugin.checkpoints.fold import main as fold
from norm_plugin.models import folding

FOLDABLE = ("--norm-type", "batchnorm", "--norm-layer-scale-groups", 0, "--norm-placement", "pre")
OTHERS = ("--norm-type-decoder-cross", "powernorm-v", "--norm-alpha-fwd", 0.8)
FOLDED = [f"encoder-{site}: batchnorm folded" for site in ("self", "ffn", "final")]


@pytest.fixture(scope="module")
def checkpoints(toy, tmp_path_factory):
    """Two checkpoints of one run whose gains and offsets began away from 1 and 0."""

    def shake(model):
        generator = torch.Generator().manual_seed(5)
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)

    folder = tmp_path_factory.mktemp("foldable")
    with pytest.MonkeyPatch.context() as patch:
        flags = (*FOLDABLE, *OTHERS, "--share-all-embeddings", "--user-dir", PLUGIN)
        flags += ("--encoder-embed-dim", 64, "--decoder-embed-dim", 64)
        more = ("--lr", 0.01, "--max-update", 80, "--save-interval-updates", 40)
        train_here(patch, toy, folder, *flags, *more, "--no-epoch-checkpoints", prepare=shake)
    return sorted(folder.glob("checkpoint_*_[48]0.pt"))


@pytest.fixture
def command(monkeypatch, capsys, toy):
    """A command of fairseq in this process, on the toy corpus: what it prints."""

    def run(module, path, *argv):
        common = (toy, "--user-dir", PLUGIN, "--path", path, "--cpu", "--num-workers", 0)
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, (*common, *argv))])
        capsys.readouterr()
        module.cli_main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def translations(command):
    """What fairseq-generate makes of the test set: its words, by sentence."""

    def generate(path, *argv):
        more = ("--beam", 2, "--required-batch-size-multiple", 1, "--max-len-b", 10)
        out = command(fairseq_cli.generate, path, *more, *argv)
        lines = [line.split("\t") for line in out.splitlines() if line.startswith("H-")]
        return {number: text for number, _, text in lines}

    return generate


@pytest.fixture
def said(caplog):
    """The log messages of folding."""
    caplog.set_level(logging.INFO, logger=folding.__name__)
    name = folding.__name__
    return lambda: [r.getMessage() for r in caplog.records if r.name == name]


def test_an_ensemble_translates_the_same(checkpoints, translations, said):
    path = ":".join(map(str, checkpoints))
    expected = translations(path)
    assert len(expected) == 40 and len(set(expected.values())) > 10
    assert not said()
    assert translations(path, "--fold-norms") == expected
    for checkpoint in checkpoints:
        own = [line for line in said() if line.startswith(f"{checkpoint}: ")]
        assert all(any(site in line for line in own) for site in FOLDED)
        assert any("decoder-cross: powernorm-v folded, 1 into 1" in line for line in own)
        assert any("decoder-ffn: layernorm is not folded: " in line for line in own)


def test_a_folded_checkpoint_is_like_any_other(checkpoints, translations, said, tmp_path, capsys):
    folded = [tmp_path / checkpoint.name for checkpoint in checkpoints]
    for checkpoint, output in zip(checkpoints, folded):
        fold([str(checkpoint), "--output", str(output)])
    printed = capsys.readouterr().out
    assert all(site in printed for site in FOLDED)
    expected = translations(":".join(map(str, checkpoints)))
    assert translations(":".join(map(str, folded))) == expected
    assert not said()
    # with the flag it says that nothing is left to fold
    assert translations(folded[0], "--fold-norms") == translations(checkpoints[0])
    assert said()[-1] == f"{folded[0]}: no norm could be folded; decoding with all norms"


@pytest.mark.parametrize("order", [1, -1])
def test_the_flag_goes_with_overrides_of_the_user(order):
    flags = [["--fold-norms"], ["--model-overrides", "{'dropout': 0.5}"]][::order]
    args = options.parse_args_and_arch(
        options.get_generation_parser(), ["DATA", "--path", "a.pt", *flags[0], *flags[1]]
    )
    assert ast.literal_eval(args.model_overrides) == {"dropout": 0.5, "fold_norms": True}


def test_the_overrides_of_the_caller_stay_as_they_are(checkpoints, said):
    overrides = {"fold_norms": True}
    for _ in range(2):  # fairseq-generate uses them again for a language model
        checkpoint_utils.load_model_ensemble_and_task([str(checkpoints[0])], overrides)
    assert overrides == {"fold_norms": True}
    assert sum("encoder-self: batchnorm folded" in line for line in said()) == 2


def test_a_folded_checkpoint_holds_what_is_left(checkpoints):
    state, _ = fold_checkpoint(checkpoints[0])
    sites = ["encoder-self", "encoder-ffn", "encoder-final", "decoder-cross"]
    assert state["folded_norms"] == sites
    assert "last_optimizer_state" not in state
    args = state["cfg"]["model"]
    assert args.norm_type_encoder_self == args.norm_type_decoder_cross == "none"
    assert args.norm_type_decoder_ffn == "layernorm"
    assert args.norm_layer_scale_groups is None and args.norm_alpha_fwd is None
    before = torch.load(checkpoints[0], weights_only=True)["model"]
    gone = set(before) - set(state["model"])
    assert {name.rpartition(".")[0] for name in gone} == {
        "encoder.layers.0.self_attn_layer_norm",
        "encoder.layers.0.final_layer_norm",
        "encoder.layer_norm",
        "decoder.layers.0.encoder_attn_layer_norm",
    }
    changed = {name for name, v in state["model"].items() if not torch.equal(v, before[name])}
    assert {name.rpartition(".")[0].partition(".layers.0.")[2] for name in changed} == {
        *(f"self_attn.{letter}_proj" for letter in "qkv"),
        *(f"encoder_attn.{letter}_proj" for letter in "qkv"),
        "fc1",
    }
    assert not any(name.startswith("decoder.layers.0.fc1") for name in changed)
