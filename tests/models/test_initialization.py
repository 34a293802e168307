"""--norm-init: which weights are drawn anew, and from what distribution."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from reference.placements import GAINS
from torch import nn

from norm_plugin.models.initialization import (
    INITIALIZATIONS,
    attention_projections,
    initializations,
    initialize,
    initialize_embeddings,
    t_fixup,
)
from norm_plugin.placements import LayerPlace


def test_maps_inside_a_norm_or_a_placement_keep_their_own_start(build):
    layer = build().encoder.layers[0]
    gates = [nn.Linear(4, 4), nn.Linear(4, 4)]
    layer.final_layer_norm.gate, layer.placement.gate = gates
    for init in initializations():
        for gate in gates:
            nn.init.ones_(gate.weight)
        initialize(layer, init, layer.placement.place)
        assert all(gate.weight.eq(1).all() for gate in gates), init


def test_kaiming_attention_leaves_the_feed_forward_network(build):
    layer = build("--norm-init", "kaiming-attention").decoder.layers[0]
    attention = list(attention_projections(layer))
    assert len(attention) == 2 * 4
    for linear in attention:
        assert linear.weight.abs().max() <= 1 / math.sqrt(linear.in_features)
        assert not linear.bias.any()
    assert layer.fc1.bias.any() and layer.fc2.bias.any()  # torch's default, as in stock


class Map(NamedTuple):
    """A linear map: ``q``, ``k``, ``v``, ``o``, ``1`` or ``2``, in layer l of N or M = 5."""

    kind: str
    fan_in: int
    fan_out: int
    side: str
    l: int  # noqa: E741 -- the papers' letter

    @property
    def xavier(self):
        return 2 / (self.fan_in + self.fan_out)

    @property
    def torch(self):
        return 1 / (3 * self.fan_in)

    @property
    def fairseq(self):
        if self.kind in "12":
            return self.torch
        return self.xavier if self.kind == "o" else self.xavier / 2

    def scaled(self, gain):
        return gain**2 if self.kind in "vo12" else 1


N, M, D = 3, 5, 128
VARIANCES = {
    "xavier": lambda w: w.fairseq,
    "kaiming": lambda w: w.torch,
    "kaiming-attention": lambda w: w.torch,
    "small": lambda w: w.xavier if w.kind in "12" else 2 / (D + 4 * D),
    "depth-scaled": lambda w: w.xavier / w.l,
    "depth-scaled-released": lambda w: w.xavier / w.l**0.5,
    "fixup": lambda w: (
        0.0
        if w.kind in "o2"
        else w.fairseq * w.scaled({"encoder": 2 * N, "decoder": 3 * M}[w.side] ** -0.5)
    ),
    "fixup-released": lambda w: (
        0.0
        if w.kind in "o2"
        else w.fairseq * (2 * N + 3 * M) ** (-1.0 if w.kind == "1" else -1 / 3)
    ),
    "gpt2": lambda w: (
        w.fairseq / {"encoder": 2 * N, "decoder": 3 * M}[w.side] if w.kind in "o2" else w.fairseq
    ),
    "nanogpt": lambda w: (
        0.02**2 / ({"encoder": 2 * N, "decoder": 3 * M}[w.side] if w.kind in "o2" else 1)
    ),
    "b2t": lambda w: w.fairseq / {"encoder": N, "decoder": M}[w.side],
    "t-fixup": lambda w: (
        w.xavier * w.scaled({"encoder": 0.67 * N**-0.25, "decoder": (9 * M) ** -0.25}[w.side])
    ),
}
VARIANCES |= {
    name: lambda w, gain=gain: w.xavier * w.scaled(gain(w.side, N, M))
    for name, gain in GAINS.items()
}
"""The variance of the weights of a map, by the word of --norm-init or the placement."""


def maps_of(layer, side, number):
    for attention in (layer.self_attn, getattr(layer, "encoder_attn", None)):
        for kind in "qkvo" if attention else "":
            linear = getattr(attention, {"o": "out_proj"}.get(kind, f"{kind}_proj"))
            yield linear, Map(kind, linear.in_features, linear.out_features, side, number)
    for kind, linear in (("1", layer.fc1), ("2", layer.fc2)):
        yield linear, Map(kind, linear.in_features, linear.out_features, side, number)


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        *(("--norm-init", word) for word in dict.fromkeys([*INITIALIZATIONS, "b2t", *GAINS])),
        *(("--norm-placement", name) for name in GAINS),
    ],
)
def test_weights_have_the_variance_of_the_formula(flag, word, build):
    model = build("--encoder-layers", str(N), "--decoder-layers", str(M), flag, word)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers, start=1):
            for linear, linear_map in maps_of(layer, side, number):
                # 128 x 128 values or more: the standard error of their variance is 1.1 % of it
                torch.testing.assert_close(
                    linear.weight.var().item(),
                    VARIANCES[word](linear_map),
                    rtol=0.05,
                    atol=0,
                    msg=str(linear_map),
                )


@pytest.mark.parametrize("name", GAINS)
def test_an_initialization_that_is_given_is_not_that_of_the_placement(name, build):
    layer = build("--norm-placement", name, "--norm-init", "xavier").encoder.layers[0]
    assert torch.equal(layer.fc1.weight, build().encoder.layers[0].fc1.weight)


def test_t_fixup_scales_the_embeddings(build, caplog):
    layers = ("--encoder-layers", str(N), "--decoder-layers", str(M))
    model = build(*layers, "--norm-init", "t-fixup", "--norm-type", "none")
    assert "replaces norms" not in caplog.text
    for stack, number in ((model.encoder, N), (model.decoder, M)):
        weight = stack.embed_tokens.weight
        assert not weight[stack.padding_idx].any()
        real = weight[[row for row in range(len(weight)) if row != stack.padding_idx]]
        # 35 x 128 values: the standard error of their variance is 2 % of it
        wanted = 1 / D * (9 * number) ** -0.5
        torch.testing.assert_close(real.var().item(), wanted, rtol=0.1, atol=0)
    build("--norm-init", "t-fixup", "--norm-placement-encoder", "rezero")
    assert "replaces norms and the warm-up of the learning rate, but the decod" in (caplog.text)
    assert "but the encoder has norms" not in caplog.text


def test_nanogpt_draws_the_embeddings_of_tokens_and_positions(build):
    model = build("--norm-init", "nanogpt", "--decoder-learned-pos")
    for embedding in (model.decoder.embed_tokens, model.decoder.embed_positions):
        weight, padding = embedding.weight, embedding.padding_idx
        assert not weight[padding].any()
        real = weight[[row for row in range(len(weight)) if row != padding]]
        # 35 x 128 values or more: the standard error of their variance is at most 2 % of it
        torch.testing.assert_close(real.var().item(), 0.02**2, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("side", "numbers"), [("encoder", (N, 0)), ("decoder", (0, N))], ids=["encoder", "decoder"]
)
def test_t_fixup_of_a_stack_alone_has_the_number_of_its_layers(side, numbers, build):
    encoder = build("--encoder-layers", "1").encoder
    place = LayerPlace(side, 1, *numbers, D, ("self", "ffn"))
    t_fixup(encoder.layers[0], place)
    initialize_embeddings(encoder.embed_tokens, None, "t-fixup", place)

    for linear, linear_map in maps_of(encoder.layers[0], side, 1):
        wanted = linear_map.xavier * linear_map.scaled((9 * N) ** -0.25)
        # 128 x 128 values or more: the standard error of their variance is 1.1 % of it
        torch.testing.assert_close(linear.weight.var().item(), wanted, rtol=0.05, atol=0)
    wanted = 1 / D * (9 * N) ** -0.5
    # 36 x 128 values, one row of zeros: the standard error of their variance is 2 % of it
    torch.testing.assert_close(encoder.embed_tokens.weight.var().item(), wanted, rtol=0.15, atol=0)
