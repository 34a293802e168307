"""Every norm reaches every site that the flags name, and no other."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from in_process import DISTINCT, WITH_STATISTICS
from norm_plugin.kernels import VARIABLE
from norm_plugin.kernels import choice as choices
from norm_plugin.models.sites import Site
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.norms.base import position_leak_check

ENCODER = {"encoder-self": "self_attn_layer_norm", "encoder-ffn": "final_layer_norm"}
DECODER = {
    "decoder-self": "self_attn_layer_norm",
    "decoder-cross": "encoder_attn_layer_norm",
    "decoder-ffn": "final_layer_norm",
}
FLAGS = [*ENCODER, "encoder-final", *DECODER, "decoder-final", "embedding"]
ALL_SITES = ("--norm-placement", "pre", "--layernorm-embedding")


def norms_by_site(model):
    """Site flag to the types of all modules there, over layers and both embeddings."""
    types = {
        site: [type(getattr(layer, attribute)) for layer in stack.layers]
        for stack, sites in ((model.encoder, ENCODER), (model.decoder, DECODER))
        for site, attribute in sites.items()
    }
    types["encoder-final"] = [type(model.encoder.layer_norm)]
    types["decoder-final"] = [type(model.decoder.layer_norm)]
    types["embedding"] = [
        type(model.encoder.layernorm_embedding),
        type(model.decoder.layernorm_embedding),
    ]
    return types


@pytest.mark.parametrize("name", DISTINCT)
def test_norm_type_reaches_every_site(name, build):
    model = build("--norm-type", name, "--norm-type-decoder", name, *ALL_SITES)
    cls = norm_spec(name).cls
    assert norms_by_site(model) == {
        **dict.fromkeys([*ENCODER], [cls] * 2),
        **dict.fromkeys([*DECODER], [cls] * 2),
        **dict.fromkeys(["encoder-final", "decoder-final"], [cls]),
        "embedding": [cls] * 2,
    }
    # and nothing else normalizes
    count = sum(isinstance(module, Norm) for module in model.modules())
    assert count == sum(map(len, norms_by_site(model).values()))
    assert not any(type(module).__module__.startswith("torch") for module in norm_modules(model))


def norm_modules(model):
    return [module for name, module in model.named_modules() if "norm" in name.rpartition(".")[2]]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_site_flag_reaches_that_site_alone(flag, build):
    model = build(f"--norm-type-{flag}", "rmsnorm", *ALL_SITES)
    changed = {
        site
        for site, types in norms_by_site(model).items()
        if set(types) == {norm_spec("rmsnorm").cls}
    }
    assert changed == {flag}


def test_the_more_specific_flag_wins(build):
    model = build(
        *("--norm-type", "adanorm", "--norm-type-encoder", "rmsnorm"),
        *("--norm-type-encoder-ffn", "none", *ALL_SITES),
    )
    types = {site: of_layers[0] for site, of_layers in norms_by_site(model).items()}
    wanted = dict.fromkeys(FLAGS, "adanorm")
    wanted.update({"encoder-self": "rmsnorm", "encoder-final": "rmsnorm"})
    wanted.update({"encoder-ffn": "none", "embedding": "rmsnorm"})
    assert types == {site: norm_spec(name).cls for site, name in wanted.items()}
    assert type(model.decoder.layernorm_embedding) is norm_spec("adanorm").cls


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_batch_statistics_leave_the_decoder_on_layernorm(name, build):
    types = norms_by_site(build("--norm-type", name, *ALL_SITES))
    layernorm, cls = norm_spec("layernorm").cls, norm_spec(name).cls
    assert {types[site][0] for site in [*DECODER, "decoder-final"]} == {layernorm}
    assert {types[site][0] for site in [*ENCODER, "encoder-final"]} == {cls}
    assert types["embedding"] == [cls, layernorm]


def test_the_choice_of_every_site_is_logged(build, caplog):
    with caplog.at_level(logging.INFO, logger="norm_plugin"):
        build("--norm-type", "powernorm", "--norm-alpha-fwd", "0.95", "--norm-placement", "pre")
    (line,) = [record.getMessage() for record in caplog.records if "norms:" in record.getMessage()]
    assert line == (
        "norms: placement pre; encoder-self=powernorm, encoder-ffn=powernorm, "
        "encoder-final=powernorm, decoder-self=layernorm, decoder-cross=layernorm, "
        "decoder-ffn=layernorm, decoder-final=layernorm "
        "(options: alpha_fwd=0.95, warmup_updates=4000)"
    )


PLAIN_EVERYWHERE = "in plain torch: encoder-self, encoder-ffn, decoder-self, decoder-cross"


@pytest.mark.parametrize(
    ("choice", "backend", "said"),
    [
        (
            "auto",
            "backend",
            "by kernels: encoder-self, encoder-ffn; "
            "in plain torch: decoder-self, decoder-cross, decoder-ffn",
        ),
        ("auto", None, f"{PLAIN_EVERYWHERE}, decoder-ffn"),
        ("compile", None, f"{PLAIN_EVERYWHERE}, decoder-ffn"),  # powernorm and layernorm
    ],
)
def test_what_computes_each_site_is_logged(choice, backend, said, build, caplog, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    loading = SimpleNamespace(load=lambda: (backend, "as told"))
    monkeypatch.setattr(choices, "BACKENDS", {"cpu": loading, "triton": loading})
    with caplog.at_level(logging.INFO, logger="norm_plugin"):
        build("--norm-type-encoder", "powernorm", "--norm-kernels", choice)
    (line,) = [line for line in caplog.messages if line.startswith("norm kernels: ")]
    assert line.startswith(f"norm kernels: {choice}: ") and line.endswith(f"; {said}")


@pytest.mark.parametrize("name", DISTINCT)
def test_batch_statistics_in_the_decoder_are_warned_of_once(name, build, caplog):
    with caplog.at_level(logging.WARNING, logger="norm_plugin"):
        build("--norm-type", name)
        assert not caplog.records
        build("--norm-type-decoder-ffn", name, "--norm-type-encoder", name)
    warnings = [record.getMessage() for record in caplog.records]
    always = getattr(norm_spec(name).cls, "mixes_after_warmup", True)
    when = "in training" if always else "in the first 4000 updates"
    leak = "each target position sees its future through the batch statistics of decoder-ffn"
    assert warnings == [f"{when} {leak}"] * norm_spec(name).batch_statistics


def test_the_norm_of_an_output_layer_is_no_site():
    """The output layer of a masked language model has a norm of the final norm's name."""
    final = Site("encoder", "final")
    assert final.is_at("encoder.sentence_encoder.layer_norm")
    assert not final.is_at("encoder.lm_head.layer_norm")


def test_released_powernorm_scales_by_heads_and_fixes_the_last_warmup(build, caplog):
    """Its public code does so in a Transformer: 4 heads, 1000 forwards after the encoder."""
    released = ("--norm-type", "powernorm", "--norm-variant", "released", "--norm-placement", "pre")
    with caplog.at_level(logging.INFO, "norm_plugin"):
        model = build(*released, "--norm-warmup-updates", "40")
    norms = [layer.self_attn_layer_norm for layer in model.encoder.layers]
    assert [(norm.layer_scale_groups, norm.warmup_updates) for norm in norms] == [(4, 40)] * 2
    last = model.encoder.layer_norm
    assert (last.layer_scale_groups, last.warmup_updates) == (4, 1000)
    (line,) = [line for line in caplog.messages if line.startswith("norms: ")]
    assert "layer_scale_groups=4" in line and "; encoder-final: warmup_updates=1000)" in line

    model = build(*released, "--norm-warmup-updates", "40", "--norm-layer-scale-groups", "2")
    assert model.encoder.layer_norm.layer_scale_groups == 2
    paper = build("--norm-type", "powernorm", "--norm-placement", "pre").encoder.layer_norm
    assert (paper.layer_scale_groups, paper.warmup_updates) == (1, 4000)  # that of the run


def test_a_norm_that_mixes_positions_unsaid_reaches_no_model(build, monkeypatch):
    """Each position would see its future in the decoder, where --norm-type puts the norm."""
    norm = norm_spec("rmsnorm").cls
    monkeypatch.setattr(position_leak_check, "_TRUE", set())
    monkeypatch.setattr(norm, "normalize", lambda self, x, valid: x - x.mean())
    with pytest.raises(ValueError, match="'rmsnorm' .* mixes positions in training"):
        build("--norm-type", "rmsnorm")
