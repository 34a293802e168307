"""``norm_tensorized_lm`` against its equations, resumed, and what it lets a position see."""

from __future__ import annotations

import argparse
from functools import partial

import pytest
import torch
from composed import train_by_fairseq
from fairseq import models
from reference.placements import EQUATIONS, Stack
from torch.nn import functional

from characters import command, task_of
from norm_plugin.checkpoints.evaluate_lm import run as evaluate
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.tensorized_lm import MODEL, NormTensorizedLanguageModel
from stacks_by_hand import (
    CHECKPOINTED,
    branch_of,
    check_gradients,
    head_norms,
    layer_norm,
    linear,
    normalized,
    norms_after,
    shaken,
    sinusoid,
)

LAYERS, WORDS, WINDOW = 3, 20, 5
SMALL = {
    "decoder_layers": LAYERS,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "rank": 4,
    "dropout": 0.0,
    "max_target_positions": WINDOW,
}


@pytest.fixture
def build(text):
    """A small model of these settings."""

    def from_settings(seed=1, **settings):
        args = argparse.Namespace(**{"arch": MODEL, **SMALL, **settings})
        torch.manual_seed(seed)
        return models.build_model(args, task_of(text))

    return from_settings


def random_tokens(length=WINDOW, rows=2):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(4, WORDS, (rows, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:].contiguous()


def row_by_hand(layer, decoder, released, y):
    """The rows of T_i at every position, (T, B, L^2), from y, (T, B, C)."""
    attention, length = layer.self_attn, len(y)
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (normalized(linear(p, y), n) for p, n in zip(maps, head_norms(layer, "self")))
    distances = [WINDOW - 1 - key for key in range(length)]
    r = linear(attention.r_proj, sinusoid(distances, y.size(-1)))
    pairs = torch.einsum("ibh,jbh->ijbh", q + decoder.content_bias, k)
    pairs = pairs + torch.einsum("ibh,jh->ijbh", q + decoder.position_bias, r)
    cores = attention.core
    tensor = torch.einsum("gh,ijbh,kbh->ibjk", cores, pairs, v) / len(cores)
    past = torch.ones(length, length, dtype=y.dtype)
    past = past if released else past.tril()
    tensor = torch.einsum("ibjk,ij,ik->ibjk", tensor, past, past)
    return functional.pad(tensor, (0, WINDOW - length) * 2).flatten(2)


VARIANTS = {
    "pre, with a final norm": {"norm_placement": "pre", "final_norm": True},
    "released mask": {"norm_placement": "post", "tensorized_mask": "released"},
    "two cores": {"norm_placement": "pre", "cores": 2},
    # an attention is a branch, which a placement calls: some placements stand for all
    **{name: {"norm_placement": name} for name in CHECKPOINTED},
    **{
        f"{name}, checkpointed": {"norm_placement": name, "checkpoint_activations": True}
        for name in CHECKPOINTED
    },
}


SHORTER = ("post", "pre, with a final norm", "released mask", "two cores")
"""Those that are also tested with fewer tokens than the window."""


@pytest.mark.parametrize(
    ("name", "length"),
    [*((name, WINDOW) for name in VARIANTS), *((name, WINDOW - 2) for name in SHORTER)],
)
def test_logits_and_gradients_are_those_of_the_equations(name, length, build):
    settings = VARIANTS[name]
    model = shaken(build(**settings))
    released = settings.get("tensorized_mask") == "released"
    tokens, _ = random_tokens(length)
    logits = model(tokens)[0]
    decoder = model.decoder
    layers = []
    for number, layer in enumerate(decoder.layers, start=1):
        attend = partial(row_by_hand, layer, decoder, released)
        ffn = branch_of(layer, "ffn", number, lambda y, fc1=layer.fc1: linear(fc1, y).relu())
        layers.append([branch_of(layer, "self", number, attend), ffn])
    after, own = norms_after(decoder)
    words = decoder.embed_tokens.weight
    x = SMALL["decoder_embed_dim"] ** 0.5 * words[tokens]
    if decoder.layernorm_embedding is not None:
        x = layer_norm(decoder.layernorm_embedding, x)
    y = EQUATIONS[settings["norm_placement"]](
        x.transpose(0, 1), Stack(layers, after, "decoder", 0, LAYERS, own)
    )
    expected = functional.linear(y.transpose(0, 1), words, decoder.output_projection.bias)
    check_gradients(model, logits, expected)


@pytest.mark.parametrize("mask", ["causal", "released"])
def test_a_position_sees_its_future_only_in_the_released_form(mask, build):
    model = shaken(build(tensorized_mask=mask))
    tokens, _ = random_tokens()
    others = tokens.clone()
    others[:, -1] = tokens[:, -1] % 16 + 4  # another letter
    assert not torch.equal(tokens, others)
    before, after = model(tokens)[0][:, :-1], model(others)[0][:, :-1]
    assert torch.equal(before, after) == (mask == "causal")


def test_several_cores_are_their_mean(build):
    model, one = shaken(build(cores=3)), shaken(build())
    state = model.state_dict()
    mean = {key: value.mean(0, keepdim=True) for key, value in state.items() if ".core" in key}
    one.load_state_dict({**state, **mean})
    tokens, _ = random_tokens()
    torch.testing.assert_close(one(tokens)[0], model(tokens)[0], rtol=1e-12, atol=1e-12)
    cores = build(cores=3).decoder.layers[0].self_attn.core
    torch.testing.assert_close(cores.sum(-1), torch.ones(3))
    assert not torch.allclose(cores[0], cores[1])


def test_decoding_step_by_step_and_padding_change_nothing(build):
    model = shaken(build())
    tokens, _ = random_tokens()
    whole, state = model(tokens)[0], {}
    for length in range(1, WINDOW + 1):
        step = model.decoder(tokens[:, :length], incremental_state=state)[0]
        torch.testing.assert_close(step[:, 0], whole[:, length - 1], rtol=1e-12, atol=1e-12)
    released = shaken(build(tensorized_mask="released"))
    padded = functional.pad(tokens[:, :3], (0, 2), value=1)
    shorter = released(tokens[:, :3])[0]
    torch.testing.assert_close(released(padded)[0][:, :3], shorter, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [WINDOW, 2])
def test_padding_is_left_out_within_the_attention(rows, build):
    """There x is (B, T, L^2), unlike elsewhere; with as many rows as tokens, the mask fits both."""
    model = build(norm_placement="sublayer", norm_type="batchnorm")
    tokens, _ = random_tokens(rows=rows)
    tokens[0, 3:] = model.decoder.padding_idx
    seen = []
    norm = model.decoder.layers[0].self_inner_norm
    norm.register_forward_hook(lambda norm, inputs, y: seen.append(y.detach()))
    model(tokens)
    real = tokens.ne(model.decoder.padding_idx)
    assert (seen[0][~real] == 0).all()
    means = seen[0][real].mean(dim=0)
    torch.testing.assert_close(means, torch.zeros(WINDOW**2), rtol=0, atol=1e-6)
    assert (seen[0][real] != 0).any()


def test_the_adaptive_input_and_softmax_of_wikitext103(build):
    cutoffs = {"adaptive_input_cutoff": "8,12", "adaptive_softmax_cutoff": "8,12"}
    model = shaken(build(arch=f"{MODEL}_wikitext103", **cutoffs))
    tokens, _ = random_tokens()
    log_p = model.get_normalized_probs(model(tokens), log_probs=True)
    # fairseq takes its logarithms in float32
    one = torch.ones_like(log_p[..., 0])
    torch.testing.assert_close(log_p.exp().sum(-1), one, rtol=0, atol=1e-5)
    weights = torch.cat([value.flatten() for value in model.decoder.embed_tokens.parameters()])
    assert weights.std().item() == pytest.approx(0.02, rel=0.2)  # of 320 values


def test_what_has_no_meaning_is_refused(build):
    for key, reason in NormTensorizedLanguageModel.refused.items():
        with pytest.raises(ValueError, match=f"is not possible in this model: {reason}"):
            build(**{key: 1})
    with pytest.raises(ValueError, match="--decoder-attention-heads is 2; .* one head"):
        build(decoder_attention_heads=2)
    with pytest.raises(ValueError, match="tensorized_mask is 'relased'; choose from causal, rel"):
        build(tensorized_mask="relased")  # only YAML can bring it here
    with pytest.raises(ValueError, match="6 tokens exceed the window of this model, 5"):
        build()(random_tokens(6)[0])


def test_the_released_form_trains_and_is_scored_only_by_name(text, tmp_path):
    flags = ("--decoder-layers", 1, "--decoder-embed-dim", 16, "--rank", 4, "--max-update", 2)
    flags += ("--tensorized-mask", "released", "--save-dir", tmp_path, "--no-epoch-checkpoints")
    train_by_fairseq(*command(text, *flags, arch=f"{MODEL}_char"))
    path = tmp_path / "checkpoint_last.pt"
    argv = [text, "--path", path, "--tokens-per-sample", 12, "--gen-subset", "test", "--cpu"]
    argv = [str(word) for word in (*argv, "--num-workers", 0)]
    with pytest.raises(CommandError, match="with --tensorized-mask released, so .* comparable"):
        evaluate(argv)
    evaluated = evaluate([*argv, "--model-overrides", "{'score_released': True}"])
    (remark,) = evaluated.remarks
    assert remark.startswith("--tensorized-mask released: every position sees the token")
