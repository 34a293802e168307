"""A checkpoint goes on with its own norms alone, unless the flags say that another is meant."""

from __future__ import annotations

import argparse
import logging

import pytest
import torch
from composed import configure

from in_process import command, everywhere, train_here
from norm_plugin.models.other_norms import loading_other_norms, same_parameters
from norm_plugin.models.resuming import differences, flat_settings, settings_of, stored_state
from norm_plugin.models.settle import settle
from norm_plugin.norms import Norm

PRE = ("--norm-placement", "pre")
ONE = ("--max-update", 1, "--disable-validation", "--no-epoch-checkpoints")
TWO = ("--max-update", 2, "--disable-validation", "--no-save")
FINETUNE = "--finetune-from-model"
STOCK_PRE = ("--encoder-normalize-before", "--decoder-normalize-before")


@pytest.fixture(scope="module")
def checkpoint(toy, tmp_path_factory):
    """Makes the checkpoint of one update with these flags, once for each set of flags."""
    made = {}

    def make(*flags, arch=None):
        if (flags, arch) not in made:
            folder = tmp_path_factory.mktemp("stored")
            arch_flags = ["--arch", arch] if arch else []
            with pytest.MonkeyPatch.context() as patch:
                train_here(patch, toy, folder, *ONE, *flags, *arch_flags)
            made[flags, arch] = folder / "checkpoint_last.pt"
        return made[flags, arch]

    return make


LAYERNORM = ("--norm-type", "layernorm", *PRE)
GROUPNORM = ("--norm-type", "groupnorm", *PRE)
POWERNORM = ("--norm-type", "powernorm", *PRE)


def differences_of(stored, given, anew=False):
    """What differs between two command lines."""
    lines = (command("DATA", "DIR", *flags) for flags in (stored, given))
    plans = [settle(flat_settings(configure(*line).model)) for line in lines]
    return differences(*plans, anew)


ENCODER = "encoder-self, encoder-ffn, encoder-final"
EVERYWHERE = f"{ENCODER}, decoder-self, decoder-cross, decoder-ffn, decoder-final"


OWN_START = (*POWERNORM, "--warmup-updates", 9, "--norm-init", "kaiming")
"""The schedule and the initialization of another run."""


@pytest.mark.parametrize(
    ("stored", "given", "said"),
    [
        (LAYERNORM, LAYERNORM, []),
        (LAYERNORM, GROUPNORM, [f"norm of {EVERYWHERE}: stored layernorm, given groupnorm"]),
        (LAYERNORM, POWERNORM, [f"norm of {ENCODER}: stored layernorm, given powernorm"]),
        (
            LAYERNORM,
            (*LAYERNORM, "--norm-type-decoder-cross", "groupnorm"),
            ["norm of decoder-cross: stored layernorm, given groupnorm"],
        ),
        (
            LAYERNORM,
            (*LAYERNORM, "--norm-eps", 1e-3),
            [f"eps of layernorm of {EVERYWHERE}: stored 1e-05, given 0.001"],
        ),
        (
            POWERNORM,
            OWN_START,
            [
                f"warmup_updates of powernorm of {ENCODER}: stored 4, given 9",
                "norm_init of encoder layers, decoder layers: stored xavier, given kaiming",
            ],
        ),
        (
            LAYERNORM,
            ("--encoder-normalize-before",),
            [
                "placement of decoder: stored pre, given post",
                "norm of decoder-final: stored layernorm, given absent",
            ],
        ),
    ],
)
def test_what_differs_is_named(stored, given, said):
    assert differences_of(stored, given) == said


def test_a_new_start_has_a_schedule_and_an_initialization_of_its_own():
    assert differences_of(POWERNORM, OWN_START, anew=True) == []
    assert len(differences_of(POWERNORM, (*OWN_START, "--norm-alpha-fwd", 0.5), anew=True)) == 1


def test_kernels_and_other_words_for_the_same_may_differ():
    same = ("--norm-type", "layernorm", "--norm-type-encoder", "powernorm", *STOCK_PRE)
    same += ("--norm-kernels", "off", "--norm-nan-check", "off", "--norm-alpha-fwd", 0.9)
    assert differences_of(POWERNORM, same) == []


@pytest.mark.parametrize("how", ["--restore-file", FINETUNE])
def test_a_change_may_be_meant(how, checkpoint, toy, tmp_path, monkeypatch, caplog):
    flags = (*GROUPNORM, how, checkpoint(*LAYERNORM))
    with pytest.raises(ValueError, match="stored layernorm, given groupnorm") as refused:
        train_here(monkeypatch, toy, tmp_path, *TWO, *flags)
    assert str(checkpoint(*LAYERNORM)) in str(refused.value)
    other = "another checkpoint to start from" if how == FINETUNE else "another --save-dir"
    assert f"Give the norms of the checkpoint, or {other}; if" in str(refused.value)
    assert "--norm-allow-mismatch on" in str(refused.value)
    with caplog.at_level(logging.WARNING, logger="norm_plugin"):
        trainer = train_here(
            monkeypatch, toy, tmp_path, *TWO, *flags, "--norm-allow-mismatch", "on"
        )
    assert trainer.get_num_updates() == 2
    assert any("stored layernorm, given groupnorm" in line for line in caplog.messages)


ALLOWED = ("--norm-allow-mismatch", "on")
SHARING = ("layernorm", "rmsnorm", "dyt", "none", "repbn")
"""Norms with gain and offset, with one of them, with other parameters, and with statistics."""


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "--restore-file") for name in SHARING), ("layernorm", FINETUNE), ("dyt", FINETUNE)],
)
def test_a_stock_model_continues_with_any_norm(
    name, how, checkpoint, toy, tmp_path, monkeypatch, caplog
):
    """All else is loaded, and so are gain and offset where both norms have them; and back again."""
    path = checkpoint(*STOCK_PRE, arch="transformer")
    flags = (*everywhere(name), *ALLOWED, how, path)
    trainer = train_here(monkeypatch, toy, tmp_path / "on", *ONE[2:], "--max-update", 2, *flags)
    assert trainer.get_num_updates() == 2
    assert name == "layernorm" or "keep initial values: " in caplog.text
    trainer.load_checkpoint(str(path), reset_optimizer=True)
    own, stored = trainer.get_model().state_dict(), torch.load(path, weights_only=True)["model"]
    norms = [p for p, module in trainer.get_model().named_modules() if isinstance(module, Norm)]
    for entry in {**own, **stored}:
        if entry.rpartition(".")[0] not in norms:
            assert torch.equal(own[entry], stored[entry]), entry
    for path_of_norm in norms:
        weight = own.get(f"{path_of_norm}.weight")
        before = stored[f"{path_of_norm}.weight"]
        assert weight is None or weight.shape != before.shape or torch.equal(weight, before)
    back = (*TWO, *LAYERNORM, *ALLOWED, FINETUNE, tmp_path / "on" / "checkpoint_last.pt")
    assert train_here(monkeypatch, toy, tmp_path / "back", *back).get_num_updates() == 2


GEMMA = ("--norm-type", "rmsnorm", "--norm-gain", "1+w", "--norm-placement", "pre")
"""A norm whose parameter is gamma - 1."""


@pytest.mark.parametrize(("stored", "given"), [(LAYERNORM, GEMMA), (GEMMA, LAYERNORM)])
def test_the_gain_is_that_of_the_stored_norm(stored, given, checkpoint, toy, tmp_path, monkeypatch):
    path = checkpoint(*stored)
    trainer = train_here(monkeypatch, toy, tmp_path, *TWO, *given, *ALLOWED, "--restore-file", path)
    trainer.load_checkpoint(str(path), reset_optimizer=True)
    norm = trainer.get_model().encoder.layer_norm
    before = torch.load(path, weights_only=True)["model"]["encoder.layer_norm.weight"]
    offset = 0 if stored is LAYERNORM else 1
    assert torch.equal(norm.weight + norm.weight_offset, before + offset)


@pytest.mark.parametrize("precision", [(), ("--ema-fp32",)])
def test_the_average_of_the_weights_is_converted_once(
    precision, checkpoint, toy, tmp_path, monkeypatch
):
    """``--store-ema`` copies the model while the checkpoint is read."""
    averaging = ("--store-ema", "--ema-decay", 0.5, *precision)
    path = checkpoint(*LAYERNORM, *averaging)
    flags = (*TWO, *GEMMA, *ALLOWED, *averaging, "--restore-file", path)
    trainer = train_here(monkeypatch, toy, tmp_path, *flags)
    models = (trainer.get_model(), trainer.ema.get_model())
    weight, averaged = (model.encoder.layer_norm.weight for model in models)
    torch.testing.assert_close(averaged, weight, rtol=0, atol=0.1)  # two small updates


def test_another_placement_starts_its_norms_anew(checkpoint, toy, tmp_path, monkeypatch, caplog):
    path = checkpoint(*LAYERNORM)
    flags = ("--norm-placement", "rezero", "--norm-allow-mismatch", "on", "--restore-file", path)
    assert train_here(monkeypatch, toy, tmp_path, *TWO, *flags).get_num_updates() == 2
    assert "the optimizer restarts" in caplog.text
    assert "keep initial values: encoder.layers.*.placement." in caplog.text
    assert "dropped: encoder.layers.*.self_attn_layer_norm.weight" in caplog.text


def test_a_norm_at_another_place_has_no_statistics_yet(build, batch):
    """Under ``post`` it normalizes a sum, under ``pre`` the input of a branch."""
    before, now, again = (
        build("--norm-type", "batchnorm", "--norm-placement", name)
        for name in ("post", "pre", "post")
    )
    before(**batch)
    state = before.state_dict()
    for model, count in ((now, 0), (again, 1)):
        with loading_other_norms(model, "path", before.cfg.plan, model.cfg.plan):
            model.load_state_dict(dict(state))
        norm = model.encoder.layers[0].final_layer_norm
        assert norm.num_updates == count
        assert (norm.running_mean == 0).all() == (count == 0)


@pytest.mark.parametrize(
    ("stored", "given", "same"),
    [
        ("layernorm", "batchnorm", True),
        ("batchnorm", "layernorm", True),
        ("powernorm", "batchnorm", True),
        ("batchnorm", "rmsnorm", False),
    ],
)
def test_the_optimizer_goes_on_where_the_parameters_are_the_same(stored, given, same, build):
    """Running statistics are no parameters."""
    before, now = (build(*map(str, everywhere(name))) for name in (stored, given))
    assert same_parameters(before.state_dict(), now, before.cfg.plan) == same


def test_what_is_no_norm_must_fit(checkpoint, toy, tmp_path, monkeypatch):
    flags = ("--norm-type", "rmsnorm", "--norm-placement", "pre", "--encoder-ffn-embed-dim", 8)
    flags += ("--norm-allow-mismatch", "on", "--restore-file", checkpoint(*LAYERNORM))
    with pytest.raises(Exception, match="please ensure that the architectures match"):
        train_here(monkeypatch, toy, tmp_path, *TWO, *flags)


@pytest.mark.parametrize("how", ["--restore-file", FINETUNE])
def test_a_stock_checkpoint_is_one_of_layernorm(how, checkpoint, toy, tmp_path, monkeypatch):
    path = checkpoint(*STOCK_PRE, arch="transformer")
    assert train_here(monkeypatch, toy, tmp_path, *TWO, *LAYERNORM, how, path)
    with pytest.raises(ValueError, match="stored layernorm, given groupnorm"):
        train_here(monkeypatch, toy, tmp_path, *TWO, *GROUPNORM, how, path)
    with pytest.raises(ValueError, match="placement of encoder, decoder: stored pre, given post"):
        train_here(monkeypatch, toy, tmp_path, *TWO, "--norm-placement", "post", how, path)


def test_a_stock_model_takes_no_other_norm(checkpoint, toy, tmp_path, monkeypatch):
    path = checkpoint(*GROUPNORM)
    flags = (*TWO, *STOCK_PRE, "--arch", "transformer", "--restore-file", path)
    with pytest.raises(ValueError, match="stored groupnorm, given layernorm") as refused:
        train_here(monkeypatch, toy, tmp_path, *flags)
    assert "--norm-allow-mismatch" not in str(refused.value)  # a stock model has no such flag
    path = checkpoint(*LAYERNORM)
    assert train_here(monkeypatch, toy, tmp_path, *flags[:-1], path).get_num_updates() == 2


def test_finetuning_may_have_another_schedule(checkpoint, toy, tmp_path, monkeypatch):
    flags = (*TWO, *POWERNORM, "--warmup-updates", 9, FINETUNE, checkpoint(*POWERNORM))
    trainer = train_here(monkeypatch, toy, tmp_path, *flags)
    assert trainer.get_model().encoder.layer_norm.warmup_updates == 9


def settings(**given):
    return {"encoder_attention_heads": 2, "decoder_attention_heads": 2, **given}


def test_heads_decide_the_groups_of_released_powernorm():
    common = {"norm_type": "powernorm", "norm_variant": "released", "norm_warmup_updates": 4}
    stored, given = settings(**common), settings(**{**common, "encoder_attention_heads": 4})
    (said,) = differences(settle(stored), settle(given))
    assert said.startswith("layer_scale_groups of powernorm of encoder-self, encoder-ffn: stored")


def test_nested_settings_of_a_stock_model_are_read(tmp_path):
    nested = {"encoder": {"normalize_before": True, "attention_heads": 2}, "dropout": 0.1}
    torch.save({"cfg": {"model": nested}, "model": {}}, tmp_path / "nested.pt")
    stored = settings_of(stored_state(str(tmp_path / "nested.pt")))
    assert stored["encoder_normalize_before"] is True and stored["dropout"] == 0.1
    old = argparse.Namespace(decoder_normalize_before=True)
    torch.save(
        {"args": old, "model": {}}, tmp_path / "old.pt", _use_new_zipfile_serialization=False
    )
    stored = settings_of(stored_state(str(tmp_path / "old.pt")))
    assert stored == {"decoder_normalize_before": True}
