"""--norm-init: which weights are drawn anew, and from what distribution."""

from __future__ import annotations

import math

import pytest
import torch

from norm_plugin.models.initialization import INITIALIZATIONS, attention_projections


def linears(model):
    """Every linear map of the layers: those of attention, and the others."""
    layers = [*model.encoder.layers, *model.decoder.layers]
    attention = [linear for layer in layers for linear in attention_projections(layer)]
    others = [linear for layer in layers for linear in (layer.fc1, layer.fc2)]
    # 2 encoder layers with one attention of 4 maps each, 2 decoder layers with two
    assert len(attention) == 2 * 4 + 2 * 8 and len(others) == 8
    return attention, others


def check_uniform(linear):
    """Uniform within 1 / sqrt(fan_in), whose variance is a third of the square, without bias."""
    variance = 1 / (3 * linear.in_features)
    assert linear.weight.abs().max() <= math.sqrt(3 * variance)
    # at least 128 x 128 values: the standard error of their variance is 0.7 % of it
    torch.testing.assert_close(linear.weight.var().item(), variance, rtol=0.04, atol=0)
    assert not linear.bias.any()


def test_xavier_is_what_fairseq_builds(build):
    stock = build(arch="transformer_iwslt_de_en").state_dict()
    for flags in ([], ["--norm-init", "xavier"]):
        ours = build(*flags, arch="norm_transformer_iwslt_de_en").state_dict()
        assert list(ours) == list(stock)
        assert all(torch.equal(ours[key], value) for key, value in stock.items())


def test_kaiming_reaches_every_linear_map(build):
    attention, others = linears(build("--norm-init", "kaiming"))
    for linear in [*attention, *others]:
        check_uniform(linear)


def test_kaiming_attention_leaves_the_feed_forward_network(build):
    attention, others = linears(build("--norm-init", "kaiming-attention"))
    for linear in attention:
        check_uniform(linear)
    assert all(linear.bias.any() for linear in others)  # torch's default, as in stock


@pytest.mark.parametrize("name", list(INITIALIZATIONS))
def test_every_norm_starts_from_the_same_weights(name, build):
    models = [build("--norm-init", name, "--norm-type", norm) for norm in ("adanorm", "dyt")]
    for one, other in zip(*(linears(model) for model in models)):
        assert all(torch.equal(a.weight, b.weight) for a, b in zip(one, other))


def test_yaml_knows_the_words(build_yaml):
    model = build_yaml(norm_init="kaiming")
    check_uniform(model.encoder.layers[0].self_attn.q_proj)
    check_uniform(model.encoder.layers[0].fc1)
    with pytest.raises(ValueError, match="norm_init is 'he'; choose from xavier, kaiming"):
        build_yaml(norm_init="he")
