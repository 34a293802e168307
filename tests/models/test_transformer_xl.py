"""``norm_transformer_xl`` against transcriptions of its equations, and its memory."""

from __future__ import annotations

import argparse
import copy
import functools
import logging

import pytest
import torch
from composed import configure
from fairseq import models, tasks
from reference.placements import EQUATIONS, Stack
from torch.nn import functional

from characters import TRAINING
from in_process import DISTINCT
from norm_plugin.models.layers import PlannedLayer
from norm_plugin.models.segments import TASK
from norm_plugin.models.transformer_xl import MODEL, NormTransformerXL
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.placements import PLACEMENTS
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

LAYERS, HEADS, WORDS = 3, 2, 20
SMALL = {
    "decoder_layers": LAYERS,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_attention_heads": HEADS,
    "dropout": 0.0,
    "mem_len": 5,
    "max_target_positions": 12,
}
LENGTH, ROWS = 4, 2


@functools.cache
def task_of(data):
    words = ("--task", TASK, "--tokens-per-sample", 6, "--arch", MODEL, *TRAINING)
    return tasks.setup_task(configure(data, *words).task)


@pytest.fixture
def build(text):
    """A small model of these settings."""

    def from_settings(seed=1, **settings):
        args = argparse.Namespace(arch=MODEL, **{**SMALL, **settings})
        torch.manual_seed(seed)
        return models.build_model(args, task_of(text))

    return from_settings


def segments(number, length=LENGTH, rows=ROWS):
    """Consecutive segments of a random text, (rows, length) each, and their next tokens."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(4, WORDS, (rows, number * length + 1), generator=generator)
    return [
        (tokens[:, start : start + length], tokens[:, start + 1 : start + length + 1])
        for start in range(0, number * length, length)
    ]


def loss_of(model, tokens, target, segment):
    return functional.cross_entropy(
        model(tokens, segment=segment)[0].flatten(0, 1), target.flatten()
    )


# ---- the equations ------------------------------------------------------------------------------

ENTER = {"scaled-pre": lambda number: number**-0.5}
"""The factor of a placement on the output of the norm on a branch's input."""


def heads_by_hand(model, layer, number, name, seen):
    """The heads of the attention of a layer over its memory, from y, (T, B, C), at the segment.

    Args:
        seen: by layer, z of the segments before; what is read is appended.
    """
    norm, attention, decoder = layer.self_attn_layer_norm, layer.self_attn, model.decoder
    factor = ENTER.get(name, lambda number: 1)(number)
    last = []

    def norm_on_input(z):
        last.append(z)
        return layer_norm(norm, z)

    def h(y):
        z = last.pop() if last else y
        before = seen.setdefault(number, torch.zeros(0, *z.shape[1:], dtype=z.dtype))
        kept = torch.cat([before, z]).detach()
        seen[number] = kept[max(0, len(kept) - decoder.mem_len) :]
        read = factor * layer_norm(norm, before) if isinstance(norm, Norm) and h.pre else before
        both = torch.cat([read, y])
        q, k, v = (
            normalized(linear(projection, x), each).unflatten(-1, (HEADS, -1))
            for projection, x, each in zip(
                (attention.q_proj, attention.k_proj, attention.v_proj),
                (y, both, both),
                head_norms(layer, "self"),
            )
        )
        positions = torch.arange(len(both))
        distance = positions[len(before) :, None] - positions
        longest = decoder.clamp_len if decoder.clamp_len > 0 else len(both)
        r = linear(attention.r_proj, sinusoid(range(len(both)), y.size(-1)))
        r = r.unflatten(-1, (HEADS, -1))[distance.clamp(min=0, max=longest)]
        scores = torch.einsum("tbhd,sbhd->bhts", q + decoder.content_bias, k)
        scores = scores + torch.einsum("tbhd,tshd->bhts", q + decoder.position_bias, r)
        hidden = distance < 0
        if decoder.same_length:
            hidden = hidden | (distance >= decoder.mem_len)
        scores = (scores / q.size(-1) ** 0.5).masked_fill(hidden, -torch.inf)
        return torch.einsum("bhts,sbhd->tbhd", scores.softmax(-1), v).flatten(-2)

    h.pre = layer.normalize_before
    return h, norm_on_input


def stack_by_hand(model, name, seen):
    layers = []
    for number, layer in enumerate(model.decoder.layers, start=1):
        h, norm_on_input = heads_by_hand(model, layer, number, name, seen)
        attention = branch_of(layer, "self", number, h)
        if "input" in attention.norms:
            attention.norms["input"] = norm_on_input
        ffn = branch_of(layer, "ffn", number, lambda y, fc1=layer.fc1: linear(fc1, y).relu())
        layers.append([attention, ffn])
    after, own = norms_after(model.decoder)
    return Stack(layers, after, "decoder", 0, LAYERS, own)


VARIANTS = {
    "pre, with a final norm": {"norm_placement": "pre", "final_norm": True},
    "longer memory than two segments": {"norm_placement": "post", "mem_len": 11},
    "no memory": {"norm_placement": "post", "mem_len": 0},
    "clamped": {"norm_placement": "post", "clamp_len": 3},
    "same length": {"norm_placement": "pre", "same_length": True},
    **{name: {"norm_placement": name} for name in PLACEMENTS},
    **{
        f"{name}, checkpointed": {"norm_placement": name, "checkpoint_activations": True}
        for name in CHECKPOINTED
    },
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_gradients_over_segments_are_those_of_the_equations(settings, build):
    model, name = shaken(build(**settings)), settings["norm_placement"]
    seen = {}
    for number, (tokens, _) in enumerate(segments(3)):
        logits = model(tokens, segment=number)[0]
        words = model.decoder.embed_tokens.weight
        x = SMALL["decoder_embed_dim"] ** 0.5 * words[tokens]
        if model.decoder.layernorm_embedding is not None:
            x = layer_norm(model.decoder.layernorm_embedding, x)
        y = EQUATIONS[name](x.transpose(0, 1), stack_by_hand(model, name, seen))
        bias = model.decoder.output_projection.bias
        expected = functional.linear(y.transpose(0, 1), words, bias)
        # float64 sums in another order, through three layers: far below any real effect
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    check_gradients(model, logits, expected)


# ---- the memory ---------------------------------------------------------------------------------


def test_two_halves_with_memory_are_one_segment(build):
    model = shaken(build(mem_len=8))
    ((tokens, _),) = segments(1, length=8)
    whole = model(tokens)[0]
    halves = [model(half, segment=i)[0] for i, half in enumerate(tokens.split(4, dim=1))]
    # float64 sums in another order
    torch.testing.assert_close(torch.cat(halves, dim=1), whole, rtol=1e-12, atol=1e-12)
    without = model(tokens[:, 4:])[0]
    assert not torch.allclose(without, whole[:, 4:], rtol=1e-3)


def test_with_one_length_of_context_the_segments_make_no_difference(build):
    """So an evaluation may have other segments than the paper's."""
    model = shaken(build(mem_len=5, clamp_len=3, same_length=True))
    ((tokens, _),) = segments(1, length=12)
    by_length = [
        torch.cat(
            [model(part, segment=i)[0] for i, part in enumerate(tokens.split(length, dim=1))], dim=1
        )
        for length in (12, 6, 4, 1)
    ]
    for other in by_length[1:]:
        # float64 sums in another order
        torch.testing.assert_close(other, by_length[0], rtol=1e-12, atol=1e-12)


def test_with_memory_of_length_0_each_segment_is_by_itself(build):
    model = shaken(build(mem_len=0))
    for number, (tokens, _) in enumerate(segments(2)):
        assert torch.equal(model(tokens, segment=number)[0], model(tokens)[0])
    assert model.decoder.memories == {}


def test_decoding_step_by_step_equals_one_segment_and_follows_reordered_rows(build):
    model = shaken(build(mem_len=0))
    ((tokens, _),) = segments(1, length=6)
    whole, state = model(tokens)[0], {}
    for length in range(1, 7):
        if length == 4:
            tokens, whole = tokens.flip(0), whole.flip(0)
            model.decoder.reorder_incremental_state(state, torch.tensor([1, 0]))
        step = model.decoder(tokens[:, :length], incremental_state=state)[0]
        # float64 sums in another order
        torch.testing.assert_close(step[:, 0], whole[:, length - 1], rtol=1e-12, atol=1e-12)


def test_training_and_evaluation_have_memories_of_their_own(build):
    model = shaken(build())
    (first, _), (second, _) = segments(2)
    model.train()(first, segment=0)
    alone = copy.deepcopy(model)(second, segment=1)[0]
    model.eval()(second, segment=0)
    assert torch.equal(model.train()(second, segment=1)[0], alone)


def test_the_memory_starts_empty_where_the_text_begins_again(build, caplog):
    model = shaken(build())
    (first, _), (second, _) = segments(2)
    logits = model(first, segment=0)[0]
    model(second, segment=1)
    assert torch.equal(model(first, segment=0)[0], logits)
    with caplog.at_level(logging.WARNING, logger="norm_plugin"):
        assert torch.equal(model(first, segment=7)[0], logits)
    assert "segment 7 starts with an empty memory: the last one seen is segment 0" in caplog.text
    with pytest.raises(ValueError, match="segment 8 has 1 rows, but the memory .* has 2"):
        model(first[:1], segment=8)


# ---- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_which_positions_count_in_batch_statistics(placement, build):
    """Under pre-norm those of the memory too, at the norm before the attention alone."""
    options = {"norm_momentum": 1.0, "norm_layer_scale_groups": 0}
    model = build(norm_type="batchnorm", norm_placement=placement, **options).double().train()
    inputs = {}
    for path, module in model.named_modules():
        if isinstance(module, Norm):
            module.register_forward_pre_hook(
                lambda norm, given, path=path: inputs.update({path: given[0]})
            )
    for number, (tokens, _) in enumerate(segments(2)):
        tokens = tokens.clone()
        tokens[1, LENGTH - number :] = 1  # the second segment ends in padding
        model(tokens, segment=number)
    for path, x in inputs.items():
        over_memory = placement == "pre" and path.endswith("self_attn_layer_norm")
        assert len(x) == LENGTH + (LENGTH if over_memory else 0)
        counted = torch.cat([x[:-1].flatten(0, 1), x[-1:, 0]])
        running = model.get_submodule(path).running_mean
        torch.testing.assert_close(running, counted.mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", DISTINCT)
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_every_norm_trains_and_each_parameter_has_a_gradient(norm, placement, build):
    settings = {"norm_type": norm, "norm_placement": placement}
    if norm_spec(norm).has_option("warmup_updates"):
        settings["norm_warmup_updates"] = 1
    model = build(**settings).double().train()
    again = build(**settings, checkpoint_activations=True).double().train()
    gradients = dict(again.named_parameters())
    for number, (tokens, target) in enumerate(segments(3)):
        losses = []
        for each in (model, again):
            each.set_num_updates(number)
            each.zero_grad()
            loss = loss_of(each, tokens, target, number)
            loss.backward()
            losses.append(loss)
        assert torch.equal(*losses)
        for key, parameter in model.named_parameters():
            # a gradient of several parts may be summed in another order
            close = {"rtol": 1e-9, "atol": 1e-12}
            torch.testing.assert_close(gradients[key].grad, parameter.grad, **close, msg=key)
            parameter.data -= 0.1 * parameter.grad
            gradients[key].data.copy_(parameter.data)
    for key, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), key
    assert set(model.nan_check.last) == {
        path for path, module in model.named_modules() if isinstance(module, Norm)
    }


def test_the_start_is_normal_and_all_norms_share_it(build):
    model = build(decoder_embed_dim=64, decoder_ffn_embed_dim=64)
    for key, value in model.named_parameters():
        start = 1.0 if "layer_norm.weight" in key else 0.0
        if key.endswith("bias") and "content" not in key and "position" not in key:
            assert not value.any(), key
            continue
        values = value[2:] if "embed_tokens" in key else value  # one row is that of padding
        # of 64 values or more: five standard errors of a standard deviation
        spread = 0.02 * 5 / (2 * values.numel()) ** 0.5
        assert (values - start).std().item() == pytest.approx(0.02, abs=spread), key
        assert values.mean().item() == pytest.approx(start, abs=0.1 * 0.02 * 10)
    other = build(decoder_embed_dim=64, decoder_ffn_embed_dim=64, norm_type="adanorm")
    shared = dict(model.named_parameters())
    for key, value in other.named_parameters():
        assert torch.equal(shared[key], value), key
    drawn_again = build(decoder_embed_dim=64, decoder_ffn_embed_dim=64, norm_init="kaiming")
    (layer, *_) = (m for m in drawn_again.modules() if isinstance(m, PlannedLayer))
    assert layer.self_attn.r_proj.weight.abs().max() <= 1 / 8  # uniform within 1 / sqrt(64)


# ---- settings -----------------------------------------------------------------------------------


def test_what_has_no_meaning_is_refused(build):
    for key, reason in NormTransformerXL.refused.items():
        with pytest.raises(ValueError, match=f"is not possible in this model: {reason}"):
            build(**{key: 1})
    with pytest.raises(ValueError, match="--mem-len is 0; it must be 1 or more with --same-length"):
        build(mem_len=0, same_length=True)
    with pytest.raises(ValueError, match="--mem-len is -3; it must be 0 or more"):
        build(mem_len=-3)
    with pytest.raises(ValueError, match="drop --final-norm"):
        build(norm_placement="sandwich", final_norm=True)
