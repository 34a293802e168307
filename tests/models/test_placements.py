"""Every placement, and some that are registered here, against a transcription of their equation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from norm_plugin.placements import (
    INPUT,
    OUTPUT,
    PLACEMENTS,
    SUM,
    Placement,
    register_placement,
)

FFN = "final_layer_norm"


class ResPost(Placement):
    norms = (OUTPUT,)


class Sandwich(Placement):
    norms = (INPUT, OUTPUT)
    final_norm = True


class AroundTheSum(Placement):
    norms = (INPUT, SUM)


class Scaled(Placement):
    """Weighs the stream by the number of layers, as DeepNorm does; draws its own weights."""

    norms = (SUM,)

    def join(self, x, fx, branch):
        return self.place.layers**0.5 * x + fx

    @staticmethod
    def initialize(layer, place):
        nn.init.constant_(layer.fc1.weight, place.index / place.layers)


class Learned(Placement):
    """Weighs each branch by a learned number, as ReZero does, from another start than 0."""

    def __init__(self, place):
        super().__init__(place)
        self.scale = nn.ParameterDict(
            {branch: nn.Parameter(torch.tensor(0.5 + n)) for n, branch in enumerate(place.branches)}
        )

    def join(self, x, fx, branch):
        return x + self.scale[branch] * fx


class Bottom(Placement):
    """Adds the input of the layer to that of the last norm, as B2T does."""

    norms = (SUM,)

    def begin(self, x):
        self.bottom = x
        return x

    def join(self, x, fx, branch):
        return self.bottom + x + fx if branch == "ffn" else x + fx


class FirstPost(Placement):
    """Post-norm in the first layer, pre-norm in the others."""

    final_norm = True

    @classmethod
    def at(cls, place):
        return PLACEMENTS["post" if place.index == 1 else "pre"]


OWN = {
    "res-post": ResPost,
    "sandwich": Sandwich,
    "around": AroundTheSum,
    "scaled": Scaled,
    "learned": Learned,
    "bottom": Bottom,
    "first-post": FirstPost,
}


class Branch:
    """A branch of a layer, as its equation sees it.

    Attributes:
        name: ``self``, ``cross`` or ``ffn``.
        f: the branch without norms.
        input, output, sum: its norms, under the names that they have in the layer.
        layer, index: its layer, and the number of that from 1.
        bottom: what went into the layer.
    """

    def __init__(self, name, f, slot, layer, index, bottom):
        self.name, self.f, self.layer, self.index, self.bottom = name, f, layer, index, bottom
        before = layer.normalize_before
        self.input = getattr(layer, slot) if before else None
        self.sum = getattr(layer, f"{name}_sum_norm", None if before else getattr(layer, slot))
        self.output = getattr(layer, f"{name}_output_norm", None)


EQUATIONS = {
    "post": lambda x, b: b.sum(x + b.f(x)),
    "pre": lambda x, b: x + b.f(b.input(x)),
    "res-post": lambda x, b: x + b.output(b.f(x)),
    "sandwich": lambda x, b: x + b.output(b.f(b.input(x))),
    "around": lambda x, b: b.sum(x + b.f(b.input(x))),
    "scaled": lambda x, b: b.sum(2**0.5 * x + b.f(x)),
    "learned": lambda x, b: x + b.layer.placement.scale[b.name] * b.f(x),
    "bottom": lambda x, b: b.sum(x + b.f(x) + (b.bottom if b.name == "ffn" else 0)),
    "first-post": lambda x, b: b.sum(x + b.f(x)) if b.index == 1 else x + b.f(b.input(x)),
}
"""From x, (T, B, C), and a branch to the new stream. A new placement adds its line here."""


@pytest.fixture
def own_placements():
    """The placements of this file, as a user's own --user-dir registers them."""
    for name, cls in OWN.items():
        register_placement(name, equation="see above", paper="none")(cls)
    yield
    for name in OWN:
        del PLACEMENTS[name]


every_placement = pytest.mark.parametrize("name", [*PLACEMENTS, *OWN])


def shaken(model):
    """``model`` in float64 and evaluation, with other gains and offsets for each norm."""
    generator = torch.Generator().manual_seed(3)
    for key, parameter in model.named_parameters():
        if "norm" in key:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def stack_by_hand(stack, name, x, mask, memory=None, memory_mask=None):
    """The layers of a stack, written out; x and memory are (T, B, C)."""
    future = torch.triu(torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype), 1)
    for index, layer in enumerate(stack.layers, start=1):
        branches = {
            "self": (
                "self_attn_layer_norm",
                lambda y, layer=layer: layer.self_attn(
                    y, y, y, key_padding_mask=mask, attn_mask=None if memory is None else future
                )[0],
            )
        }
        if memory is not None:
            branches["cross"] = (
                "encoder_attn_layer_norm",
                lambda y, layer=layer: layer.encoder_attn(
                    y, memory, memory, key_padding_mask=memory_mask, static_kv=True
                )[0],
            )
        branches["ffn"] = (FFN, lambda y, layer=layer: layer.fc2(layer.fc1(y).relu()))
        bottom = x
        for branch, (slot, f) in branches.items():
            x = EQUATIONS[name](x, Branch(branch, f, slot, layer, index, bottom))
    return x if stack.layer_norm is None else stack.layer_norm(x)


@every_placement
@pytest.mark.usefixtures("own_placements")
def test_forward_and_gradients_are_those_of_the_equation(name, build, batch, task):
    model = shaken(build("--norm-placement", name))
    pad = task.source_dictionary.pad()
    mask, prev = batch["src_tokens"].eq(pad), batch["prev_output_tokens"]
    logits = model(**batch)[0]
    real = prev.ne(pad)
    logits[real].square().sum().backward()
    found = {key: value.grad.clone() for key, value in model.named_parameters()}
    model.zero_grad()

    x = model.encoder.forward_embedding(batch["src_tokens"])[0] * ~mask.unsqueeze(-1)
    memory = stack_by_hand(model.encoder, name, x.transpose(0, 1), mask)
    y = model.decoder.embed_scale * model.decoder.embed_tokens(prev)
    y = (y + model.decoder.embed_positions(prev)).transpose(0, 1)
    y = stack_by_hand(model.decoder, name, y, prev.eq(pad), memory, mask)
    by_hand = model.decoder.output_projection(y.transpose(0, 1))
    # fairseq's attention over the encoder takes its softmax in float32 (eps 1.2e-7), on both sides
    # of this comparison; what differs is the order of float64 sums
    close = {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(logits[real], by_hand[real], **close)
    by_hand[real].square().sum().backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, **close, msg=key)


@every_placement
@pytest.mark.usefixtures("own_placements")
def test_decoding_step_by_step_equals_decoding_at_once(name, build, batch):
    model = shaken(build("--norm-placement", name))
    tokens = batch["prev_output_tokens"][:2, :5]
    encoder_out = model.encoder(batch["src_tokens"][:2], batch["src_lengths"][:2])
    at_once = model.decoder(tokens, encoder_out=encoder_out)[0]
    state = {}
    for length in range(1, 6):
        one = model.decoder(tokens[:, :length], encoder_out, incremental_state=state)[0]
        # Step by step fairseq takes the softmax of attention in float32; see test_forward.py
        torch.testing.assert_close(one[:, 0], at_once[:, length - 1], rtol=1e-4, atol=1e-4)


@every_placement
@pytest.mark.usefixtures("own_placements")
def test_checkpointed_activations_give_the_same_gradients(name, build, batch):
    plain, checkpointed = (
        build("--norm-placement", name, *flags).double() for flags in ([], [CHECKPOINT])
    )
    for model in (plain, checkpointed):
        model(**batch)[0].square().sum().backward()
    others = dict(checkpointed.named_parameters())
    for key, parameter in plain.named_parameters():
        # gradients of the encoder's output are summed in another order; float64 rounding only
        torch.testing.assert_close(others[key].grad, parameter.grad, rtol=1e-9, atol=1e-9, msg=key)


CHECKPOINT = "--checkpoint-activations"


@pytest.mark.usefixtures("own_placements")
def test_a_flag_of_a_branch_reaches_all_its_norms(build):
    model = build("--norm-placement", "sandwich", "--norm-type-encoder-ffn", "rmsnorm")
    layer = model.encoder.layers[0]
    kinds = {
        name: type(module).__name__
        for name, module in layer.named_children()
        if name.endswith("norm")
    }
    assert kinds == {
        "self_attn_layer_norm": "LayerNorm",
        "self_output_norm": "LayerNorm",
        FFN: "RMSNorm",
        "ffn_output_norm": "RMSNorm",
    }
    assert [choice.site.name for choice in model.cfg.plan.sites][:5] == [
        *("encoder-self", "encoder-self-output", "encoder-ffn", "encoder-ffn-output"),
        "encoder-final",
    ]


@pytest.mark.usefixtures("own_placements")
def test_a_placement_brings_its_own_weights(build):
    for flags in (["--norm-placement", "scaled"], ["--norm-init", "scaled"]):
        model = build(*flags)
        for stack in (model.encoder, model.decoder):
            means = [layer.fc1.weight.mean().item() for layer in stack.layers]
            assert means == [0.5, 1.0]
    other = build("--norm-placement", "scaled", "--norm-init", "xavier")
    assert abs(other.encoder.layers[0].fc1.weight.mean().item()) < 0.1


@pytest.mark.usefixtures("own_placements")
def test_a_norm_folds_only_where_its_output_stays_in_the_branch(build):
    from norm_plugin.models import fold_norms

    flags = ("--norm-type-encoder", "batchnorm", "--norm-layer-scale-groups", "0")
    found = {
        str(folding.site.name): folding.reason
        for folding in fold_norms(build("--norm-placement", "sandwich", *flags))
    }
    assert found["encoder-self"] == "it shares its flag with encoder-self-output, which stays"
    assert found["encoder-self-output"].startswith("its output is the residual stream")
    assert found["encoder-final"] == ""


def test_an_unknown_position_is_refused():
    class Wrong(Placement):
        norms = ("middle",)

    with pytest.raises(ValueError, match=r"Wrong.norms names middle; .* at input, output or sum"):
        register_placement("wrong", equation="none", paper="none")(Wrong)
    with pytest.raises(ValueError, match="placement 'pre' is registered twice"):
        register_placement("pre", equation="none", paper="none")(Wrong)
