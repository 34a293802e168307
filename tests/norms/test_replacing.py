"""replace_norms: any norm in any torch model, with its padding mask."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from norm_plugin.norms import NORM_TYPES, Norm, build_norm, norm_spec, replace_norms
from norm_plugin.norms.base import position_leak_check
from norm_plugin.norms.base.padding_mask import PaddingMask

BATCH, TIME, DIM = 4, 6, 8
BATCH_NORMS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]
MASK = torch.arange(TIME) >= torch.tensor([[6], [4], [3], [1]])  # (B, T), True at padding


def new_encoder(batch_first=True, dropout=0.0, dtype=torch.float64):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(
        DIM, 2, 16, dropout, batch_first=batch_first, norm_first=True, dtype=dtype
    )
    final = nn.LayerNorm(DIM, dtype=dtype)
    encoder = nn.TransformerEncoder(layer, 2, final, enable_nested_tensor=False)
    for parameter in encoder.parameters():  # gains other than 1, unlike in each layer
        nn.init.normal_(parameter, mean=0.2, std=0.5)
    return encoder


def new_input(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, TIME, DIM, generator=generator, dtype=torch.float64)


def replaced(name, **options):
    encoder = new_encoder()
    replace_norms(encoder, name, mask="src_key_padding_mask", **options)
    return encoder.train()


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def run(model, x, mask=MASK):
    """Output and gradients of one training step; the loss leaves padding out."""
    torch.manual_seed(2)  # of dropout
    y = model(x, src_key_padding_mask=mask)
    y[~mask].square().sum().backward()
    return y.detach(), gradients(model)


def test_a_norm_that_mixes_positions_unsaid_reaches_no_model(monkeypatch):
    """Its statistics would include padding, and a causal model would see its future."""
    monkeypatch.setattr(position_leak_check, "_TRUE", set())
    monkeypatch.setattr(norm_spec("rmsnorm").cls, "normalize", lambda self, x, valid: x - x.mean())
    encoder = new_encoder()
    with pytest.raises(ValueError, match="'rmsnorm' .* mixes positions in training"):
        replace_norms(encoder, "rmsnorm", mask=None)
    assert not any(isinstance(module, Norm) for module in encoder.modules())


@pytest.mark.parametrize("batch_first", [True, False])
def test_layernorm_in_the_place_of_layernorm_changes_no_bit(batch_first):
    x, mask = new_input(), MASK
    stock, ours = (new_encoder(batch_first, dropout=0.1) for _ in range(2))
    replaced_norms = replace_norms(ours, "layernorm", batch_first=batch_first)
    x = x if batch_first else x.transpose(0, 1)
    outputs = []
    for model in (stock, ours):
        torch.manual_seed(2)
        y = model(x, src_key_padding_mask=mask)
        y.square().sum().backward()
        outputs.append(y)

    assert len(replaced_norms) == 5 and all(isinstance(each.norm, Norm) for each in replaced_norms)
    assert torch.equal(*outputs)
    theirs, mine = gradients(stock), gradients(ours)
    assert list(theirs) == list(mine)
    assert all(torch.equal(theirs[name], mine[name]) for name in theirs)


@pytest.mark.parametrize("name", NORM_TYPES)
def test_every_norm_trains_every_parameter(name):
    encoder = replaced(name)
    torch.manual_seed(1)
    for key, parameter in encoder.named_parameters():
        if "norm" in key:  # a factor that starts from 0 would hide the gradient of another
            nn.init.normal_(parameter, std=0.1)
    y, grads = run(encoder, new_input())
    assert y.isfinite().all()
    assert [key for key, grad in grads.items() if grad is None or not grad.isfinite().all()] == []
    assert [key for key, grad in grads.items() if "norm" in key and not grad.any()] == []
    assert not any(isinstance(module, nn.LayerNorm) for module in encoder.modules())


@pytest.mark.parametrize("name", ["rmsnorm", "powernorm"])
def test_inference_computes_the_new_norm_with_and_without_autograd(name):
    # without autograd torch has a fused kernel, which would compute LayerNorm
    layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2)
    replace_norms(encoder, name, mask="src_key_padding_mask")
    encoder.eval()
    with_autograd = encoder(new_input(), src_key_padding_mask=MASK)
    with torch.no_grad():
        without = encoder(new_input(), src_key_padding_mask=MASK)
    torch.testing.assert_close(without[~MASK], with_autograd[~MASK])


@pytest.mark.parametrize("name", ["dyt", "powernorm", "rmsnorm"])
def test_inference_of_a_layer_whose_norms_were_replaced_by_hand(name):
    layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, dtype=torch.float64).eval()
    layer.norm1, layer.norm2 = (build_norm(name, DIM).double().eval() for _ in range(2))
    with_autograd = layer(new_input())
    with torch.no_grad():
        torch.testing.assert_close(layer(new_input()), with_autograd)


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_padding_changes_neither_statistics_nor_other_outputs(name):
    x = new_input()
    other = torch.where(MASK.unsqueeze(-1), 100.0, x)
    longer = torch.cat([x, torch.full((BATCH, 3, DIM), 7.0, dtype=x.dtype)], dim=1)
    longer_mask = torch.cat([MASK, torch.ones(BATCH, 3, dtype=torch.bool)], dim=1)
    wanted = replaced(name)
    y, grads = run(wanted, x)
    for inputs, mask in ((other, MASK), (longer, longer_mask)):
        encoder = replaced(name)
        actual, actual_grads = run(encoder, inputs, mask)
        # the sums of a longer batch are added in another order; statistics may be in float32
        torch.testing.assert_close(actual[:, :TIME][~MASK], y[~MASK], rtol=1e-5, atol=1e-5)
        for (key, buffer), expected in zip(encoder.named_buffers(), wanted.buffers()):
            torch.testing.assert_close(buffer, expected, rtol=1e-5, atol=1e-5, msg=key)
        for key, grad in actual_grads.items():
            torch.testing.assert_close(grad, grads[key], rtol=1e-4, atol=1e-4, msg=key)


def test_a_mask_of_numbers_that_are_added_to_the_scores():
    x, numbers = new_input(), torch.zeros(MASK.shape, dtype=torch.float64)
    wanted, encoder = replaced("batchnorm"), replaced("batchnorm")
    run(wanted, x)
    encoder(x, src_key_padding_mask=numbers.masked_fill(MASK, -torch.inf))
    # torch adds such a mask to the scores of attention in another order
    torch.testing.assert_close(encoder.norm.running_mean, wanted.norm.running_mean)


class Checkpointed(nn.Module):
    """The layers of an encoder, each computed again in the backward pass."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, attention_mask=None):
        mask = attention_mask == 0
        for layer in self.encoder.layers:
            x = checkpoint(layer, x, src_key_padding_mask=mask, use_reentrant=False)
        return self.encoder.norm(x)


def test_activation_checkpointing_uses_the_mask_of_its_forward():
    plain, model = replaced("batchnorm"), Checkpointed(new_encoder())
    replace_norms(model, "batchnorm")
    model.train()
    masks = [MASK, MASK.flip(0)]
    losses = {}
    for which, call in (
        ("plain", lambda x, mask: plain(x, src_key_padding_mask=mask)),
        ("again", lambda x, mask: model(x, attention_mask=(~mask).long())),
    ):
        outputs = [call(new_input(seed), mask) for seed, mask in enumerate(masks)]
        losses[which] = [y[~mask].square().sum() for y, mask in zip(outputs, masks)]
    for which in ("plain", "again"):  # two forwards, whose backward passes come in turn
        for loss in reversed(losses[which]):
            loss.backward()
    for theirs, ours in zip(plain.parameters(), model.encoder.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(("affine", "dtype"), [(True, torch.float16), (False, None)])
def test_an_rms_norm_without_eps_of_its_own(affine, dtype):
    model = nn.Sequential(nn.RMSNorm(DIM, elementwise_affine=affine, dtype=dtype))
    if not affine:
        dtype = torch.get_default_dtype()  # there is no parameter to read another one from
    x = (1e-3 * torch.randn(3, DIM)).to(dtype)  # so small that eps counts
    before = model(x)
    replace_norms(model, "rmsnorm")
    torch.testing.assert_close(model(x), before)


def test_what_a_norm_keeps():
    model = nn.Sequential(nn.LayerNorm(DIM, eps=1e-3, dtype=torch.bfloat16).requires_grad_(False))
    old = model[0]
    (replacement,) = replace_norms(model.eval(), "batchnorm", eps=1e-2, mask=None)
    assert replacement.carried == ("weight", "bias")
    assert model[0].weight is old.weight and model[0].bias is old.bias
    assert not model[0].weight.requires_grad and not model[0].training
    assert model[0].eps == 1e-2
    (replacement,) = replace_norms(nn.Sequential(nn.LayerNorm(DIM)), "layernorm-simple")
    assert replacement.carried == ("eps",)
    old = nn.RMSNorm(DIM, eps=1e-6, elementwise_affine=False)
    (replacement,) = replace_norms(nn.Sequential(nn.Linear(DIM, DIM), old), "rmsnorm")
    assert str(replacement) == "1: RMSNorm -> RMSNorm, which keeps eps"


@pytest.mark.parametrize("like", [{"dtype": torch.float64}, {"device": "meta"}])
def test_a_norm_without_parameters_is_where_the_model_is(like):
    old = nn.LayerNorm(DIM, elementwise_affine=False)
    model = nn.Sequential(nn.Linear(DIM, DIM, **like), old)
    replace_norms(model, "layernorm")
    first, weight = model[0].weight, model[1].weight
    assert (weight.dtype, weight.device) == (first.dtype, first.device)


@pytest.mark.parametrize("affine", [True, False])
def test_a_frozen_model_stays_frozen(affine):
    old = nn.RMSNorm(DIM, elementwise_affine=affine)
    model = nn.Sequential(nn.Linear(DIM, DIM), old).requires_grad_(False)
    replace_norms(model, "batchnorm", mask=None)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model = nn.Sequential(nn.Linear(DIM, DIM).requires_grad_(False), nn.RMSNorm(DIM))
    replace_norms(model, "batchnorm", mask=None)
    assert model[1].weight.requires_grad and model[1].bias.requires_grad


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_layernorm, self.norm = (nn.LayerNorm(DIM) for _ in range(3))


def attentions():
    return nn.ModuleDict({name: nn.ModuleList([SelfAttention()]) for name in ("encoder", "head")})


EVERY = ["q_norm", "k_layernorm", "norm"]


@pytest.mark.parametrize(
    ("name", "choice", "chosen"),
    [
        ("dyt", {}, [f"{stack}.0.{norm}" for stack in ("encoder", "head") for norm in EVERY]),
        ("dyt", {"only": "encoder.*"}, [f"encoder.0.{norm}" for norm in EVERY]),
        ("dyt", {"only": ["head.0.norm", "*.q_norm"], "keep": "encoder.*"},
         ["head.0.q_norm", "head.0.norm"]),
        ("batchnorm", {"mask": None}, ["encoder.0.norm", "head.0.norm"]),
        ("batchnorm", {"mask": None, "keep": ["head.*"]}, ["encoder.0.norm"]),
    ],
)  # fmt: skip
def test_only_and_keep_choose_by_path(name, choice, chosen):
    model = attentions()
    assert [each.path for each in replace_norms(model, name, **choice)] == chosen
    replaced_paths = [path for path, module in model.named_modules() if isinstance(module, Norm)]
    assert sorted(replaced_paths) == sorted(chosen)


@pytest.mark.parametrize(
    ("name", "choice", "message"),
    [
        (
            "dyt",
            {"only": "decoder.*"},
            r"'decoder.\*' matches none of the norms: encoder.*.q_norm, ",
        ),
        ("dyt", {"keep": ["head.*", "tail"]}, "'tail' matches none of the norms"),
        ("dyt", {"only": "head.*", "keep": "*"}, "only= and keep= leave none to replace"),
        ("batchnorm", {"only": "*.q_norm"}, "norms of queries, keys and values stay"),
    ],
)
def test_a_choice_that_chooses_nothing(name, choice, message):
    with pytest.raises(ValueError, match=message):
        replace_norms(attentions(), name, **choice)


def test_a_shared_module_stays_one():
    norm = nn.LayerNorm(DIM)
    model = nn.ModuleDict({"a": norm, "b": norm, "c": nn.Sequential(norm)})
    replacements = replace_norms(model, "rmsnorm")
    assert [replacement.path for replacement in replacements] == ["a", "b", "c.0"]
    assert model["a"] is model["b"] is model["c"][0]
    model = nn.ModuleDict({"a": norm, "b": norm})
    with pytest.raises(ValueError, match="b is also at another path, which is replaced"):
        replace_norms(model, "rmsnorm", only="a")


def test_a_copied_part_of_a_model_gets_the_mask_of_that_model():
    # as peft does with modules_to_save and with norms that it tunes
    model, wanted = replaced("batchnorm"), replaced("batchnorm")
    model.norm = copy.deepcopy(model.norm)
    model.layers[1] = copy.deepcopy(model.layers[1])
    y, grads = run(model, new_input())
    expected, expected_grads = run(wanted, new_input())
    torch.testing.assert_close(y[~MASK], expected[~MASK], rtol=0, atol=0)
    torch.testing.assert_close(grads, expected_grads, rtol=0, atol=0)
    torch.testing.assert_close(dict(model.named_buffers()), dict(wanted.named_buffers()))


@pytest.mark.parametrize("mask_first", [True, False])
def test_a_copied_model_has_a_mask_of_its_own_in_any_order(mask_first):
    # as the stacks for fairseq, which hold the mask as an attribute
    model, norm = nn.Module(), build_norm("batchnorm", DIM)
    for name in ("padding", "norm") if mask_first else ("norm", "padding"):
        vars(model)[name] = PaddingMask(model) if name == "padding" else norm
    model.padding.attach(norm, batch_first=True)
    copied = copy.deepcopy(model)
    with copied.padding.holding(MASK):
        copied.norm(new_input())
    with model.padding.holding(None):
        norm(new_input())
    expected = build_norm("batchnorm", DIM)
    expected(new_input(), MASK, batch_first=True)
    assert torch.equal(copied.norm.running_mean, expected.running_mean)
    assert not torch.equal(norm.running_mean, expected.running_mean)


class OneNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x, attention_mask=None):
        return self.norm(x)


def test_inference_needs_no_mask_that_fits():
    # as in generation, where x holds the new position and the mask all of them
    model = OneNorm()
    replace_norms(model, "batchnorm")
    x, mask = torch.randn(BATCH, 1, DIM), torch.ones(BATCH, TIME)
    assert model.eval()(x, attention_mask=mask).shape == x.shape
    with pytest.raises(ValueError, match=r"norm gets an input of shape \(4, 1, 8\) for tokens of"):
        model.train()(x, attention_mask=mask)
    with pytest.raises(RuntimeError, match="outside of the forward"):  # the failed one has ended
        model.norm(x)


class Flattening(OneNorm):
    """The norm gets all positions in one dimension, as in OPT."""

    def forward(self, x, attention_mask=None):
        return self.norm(x.flatten(0, 1)).view_as(x)


@pytest.mark.parametrize("batch_first", [True, False])
def test_positions_in_one_dimension_keep_their_padding(batch_first):
    x = torch.randn(BATCH, TIME, DIM)
    plain, flat = OneNorm(), Flattening()
    for model in (plain, flat):
        replace_norms(model, "batchnorm", batch_first=batch_first)
    inputs = x if batch_first else x.transpose(0, 1)
    outputs = [model.train()(inputs, attention_mask=~MASK) for model in (plain, flat)]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(plain.norm.running_mean, flat.norm.running_mean)


class Padding(nn.Module):
    """It pads its tokens inside, as Longformer does."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, DIM)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM), nn.LayerNorm(DIM)])

    def forward(self, input_ids, attention_mask=None):
        return self.norms[1](nn.functional.pad(self.norms[0](self.embed(input_ids)), (0, 0, 0, 3)))


def test_an_input_that_is_not_of_the_tokens_is_refused_in_training():
    tokens, mask = torch.randint(10, (BATCH, TIME)), (~MASK).long()
    model = Padding().train()
    replace_norms(model, "batchnorm", keep="norms.1", causal=False)
    model(tokens, attention_mask=mask)
    model = Padding().train()
    replace_norms(model, "batchnorm", causal=False)
    message = (
        r"norms\.1 gets an input of shape \(4, 9, 8\) for tokens of shape \(4, 6\), so .* keep="
    )
    with pytest.raises(ValueError, match=message):
        model(tokens, attention_mask=mask)


def test_a_mask_is_of_one_forward():
    model = OneNorm()
    replace_norms(model, "batchnorm")
    model.train()
    x = torch.randn(BATCH, TIME, DIM)
    model(x, attention_mask=(~MASK).long())
    masked = model.norm.running_mean.clone()
    model.norm.running_mean.zero_()
    model(x)  # without a mask nothing is padding
    assert not torch.allclose(model.norm.running_mean, masked)
    with pytest.raises(RuntimeError, match="outside of the forward of the OneNorm that"):
        model.norm(x)


class Wrapper(nn.Module):
    """It names no argument, as LoraModel of peft and what torch.compile returns."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, DIM)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, input_ids, attention_mask=None):
        return self.norm(self.embed(input_ids))


@pytest.mark.parametrize("cached", [0, 2])
def test_a_mask_reaches_norms_through_wrappers_and_past_a_cache(cached):
    # a mask of the positions in the cache, as of a prefix, precedes that of the tokens
    model = Reader()
    wrapped = Wrapper(Wrapper(model)).train()
    assert [each.path for each in replace_norms(wrapped, "batchnorm", causal=False)] == ["norm"]
    tokens = torch.arange(BATCH * TIME).view(BATCH, TIME) % 10
    mask = torch.cat([torch.ones(BATCH, cached), ~MASK], dim=1)
    wrapped(input_ids=tokens, attention_mask=mask)
    expected = build_norm("batchnorm", DIM)
    expected(model.embed(tokens), MASK, batch_first=True)
    torch.testing.assert_close(model.norm.running_mean, expected.running_mean)


def test_a_mask_that_is_no_tensor_of_tokens_is_refused():
    model = Reader().train()
    replace_norms(model, "batchnorm", causal=False)
    with pytest.raises(ValueError, match=r"attention_mask is a dict; .* \(batch, time\)"):
        model(torch.ones(BATCH, TIME, dtype=torch.long), attention_mask={"full_attention": MASK})


def test_a_mask_that_is_added_to_scores_is_no_mask_of_zeros_at_padding():
    model = OneNorm()
    replace_norms(model, "batchnorm")
    with pytest.raises(ValueError, match="attention_mask has negative values, as a mask that is"):
        model.train()(torch.randn(BATCH, TIME, DIM), attention_mask=-1e4 * MASK)


class TwoStacks(OneNorm):
    def forward(self, x, attention_mask=None, decoder_attention_mask=None):
        return self.norm(x)


def offloaded():
    model = nn.Sequential(nn.LayerNorm(2, device="meta"))
    model[0]._hf_hook = object()  # as by accelerate
    return model


class DTensor(nn.Parameter):
    """As the parameters of a model after FSDP2."""


def sharded():
    model = nn.Sequential(nn.LayerNorm(2))
    model[0].weight = DTensor(torch.ones(2))
    return model


def hooked(register):
    model = nn.Sequential(nn.LayerNorm(2))
    getattr(model[0], register)(lambda *_: pytest.fail("the hook was called"))
    return model


REGISTER = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        *((hooked(each), {"mask": None}, r"0 \(LayerNorm\) has hooks, which") for each in REGISTER),
        (offloaded(), {"mask": None}, r"0 \(LayerNorm\) is offloaded or sharded: replace the"),
        (sharded(), {"mask": None}, r"0 \(LayerNorm\) is offloaded or sharded: replace the"),
        (nn.Sequential(nn.Linear(2, 2)), {}, "contains no LayerNorm and no RMSNorm"),
        (nn.LayerNorm(2), {}, "contains no LayerNorm"),
        (new_encoder(), {}, "no argument 'attention_mask', but src, mask, src_key_padding_mask"),
        (new_encoder(), {"mask": "src_key_padding_mask", "batch_first": False}, "give the same"),
        (TwoStacks(), {}, "two stacks with a mask each, 'attention_mask' and 'decoder_att"),
        (new_encoder(), {"scale": 2}, "has no option 'scale'"),
    ],
)
def test_what_cannot_be_replaced(model, arguments, message):
    before = list(model.modules())
    with pytest.raises(ValueError, match=message):
        replace_norms(model, "batchnorm", **arguments)
    assert list(model.modules()) == before
    assert not model._forward_pre_hooks and not model._forward_hooks


class Attention(nn.Module):
    """An attention as in transformers, which says that it is causal."""

    def __init__(self):
        super().__init__()
        self.is_causal = True
        self.norm = nn.LayerNorm(DIM)


def decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(DIM, 2, 16, batch_first=True), 1)


@pytest.mark.parametrize("model", [decoder, Attention])
@pytest.mark.parametrize(
    ("name", "options", "when"),
    [
        ("batchnorm", {}, ""),
        ("mabn", {"warmup_updates": 2}, ""),
        ("powernorm", {"warmup_updates": 2}, " until its warm-up ends"),
    ],
)
def test_a_causal_model_is_warned_of(name, options, when, model):
    with pytest.warns(UserWarning, match=f"is causal: in training{when}, '{name}' .* sees its"):
        replace_norms(model(), name, mask=None, **options)


@pytest.mark.parametrize(
    ("model", "name"), [(decoder, "rmsnorm"), (decoder, "powernorm"), (new_encoder, "batchnorm")]
)
def test_no_warning_where_no_position_sees_its_future(model, name, recwarn):
    replace_norms(model(), name, mask=None)
    assert not [warning for warning in recwarn if "causal" in str(warning.message)]


class OwnGPT(nn.Module):
    """As nanoGPT: its attention is a function, which no class shows."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(10, DIM), nn.LayerNorm(DIM)


def test_a_model_that_does_not_show_whether_it_is_causal_is_asked_for_it(recwarn):
    for name in ("batchnorm", "mabn"):
        with pytest.raises(
            ValueError, match="OwnGPT hides whether it is causal: give causal=False"
        ):
            replace_norms(OwnGPT(), name, mask=None)
    replace_norms(OwnGPT(), "rmsnorm", mask=None)
    replace_norms(OwnGPT(), "batchnorm", mask=None, causal=False)
    assert not [warning for warning in recwarn if "causal" in str(warning.message)]
    with pytest.warns(UserWarning, match="the model is causal: in training, 'batchnorm'"):
        replace_norms(OwnGPT(), "batchnorm", mask=None, causal=True)


class Mixing(OwnGPT):
    """Each position is the mean over those before it, or over all."""

    def __init__(self, is_causal):
        super().__init__()
        self.only_past = is_causal

    def forward(self, tokens, attention_mask=None):
        x = self.norm(self.tokens(tokens))
        time = x.size(1)
        return (torch.ones(time, time).tril() if self.only_past else torch.ones(time, time)) @ x


class Masked(Mixing):
    """Its caller may say what each position sees."""

    def forward(self, tokens, src_mask=None):
        return super().forward(tokens)


class Noisy(Mixing):
    """Two calls with the same tokens differ, in inference, too."""

    def forward(self, tokens):
        y = super().forward(tokens)
        return y + torch.rand_like(y)


def test_whether_a_model_is_causal_is_seen_by_calling_it(recwarn):
    model = Mixing(is_causal=False)
    model.norm.eval()
    replace_norms(model, "batchnorm")
    assert model.training and not model.norm.training
    for hiding in (Masked(is_causal=False), Noisy(is_causal=True)):
        with pytest.raises(ValueError, match=f"{type(hiding).__name__} hides whether it is causal"):
            replace_norms(hiding, "batchnorm", mask=None)
    assert not [warning for warning in recwarn if "causal" in str(warning.message)]
    with pytest.warns(UserWarning, match=r"the model \(Mixing\) is causal: in training, 'batchn"):
        replace_norms(Mixing(is_causal=True), "batchnorm")


class GemmaRMSNorm(nn.Module):
    """RMSNorm with gamma = 1 + weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        return nn.functional.rms_norm(x, (DIM,), 1 + self.weight, 1e-6)


def tied_gains(*others):
    """Norms with gamma = 1 + w, other modules, and one w for all of them."""
    model = nn.Sequential(GemmaRMSNorm(), GemmaRMSNorm(), *others)
    nn.init.normal_(model[0].weight)
    for module in model:
        module.weight = model[0].weight
    return model


def test_tied_gains_stay_tied_and_keep_what_they_were():
    model, x = tied_gains(), torch.randn(3, DIM)
    expected = model(x)
    replace_norms(model, "rmsnorm")
    assert model[0].weight is model[1].weight
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("others", "choice"), [([nn.LayerNorm(DIM)], None), ([nn.Identity()], None), ([], "0")]
)
def test_a_gain_that_is_another_value_elsewhere_is_refused(others, choice):
    model = tied_gains(*others)
    before, norms = model[0].weight.clone(), list(model)
    with pytest.raises(ValueError, match="shares the gain of a norm, 1 . weight there"):
        replace_norms(model, "batchnorm", mask=None, only=choice)
    assert torch.equal(model[0].weight, before) and list(model) == norms


def test_norms_are_replaced_once():
    model = OneNorm()
    replace_norms(model, "layernorm")
    with pytest.raises(ValueError, match="its norms are replaced already: build it anew"):
        replace_norms(model, "rmsnorm")


def with_gain(cls):
    return nn.Sequential(nn.Linear(DIM, DIM), cls())


@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_gain_of_1_plus_weight_stays_one_in_every_order(loaded):
    old = with_gain(GemmaRMSNorm)
    nn.init.normal_(old[1].weight)
    model = with_gain(GemmaRMSNorm)
    if loaded == "before":
        model.load_state_dict(old.state_dict())
    (replaced,) = replace_norms(model, "rmsnorm", mask=None)
    model.load_state_dict(old.state_dict())
    assert (replaced.shift, replaced.norm.weight_offset) == (0, 1)
    x = torch.randn(3, DIM)
    torch.testing.assert_close(model(x), old(x))


def test_a_norm_with_values_keeps_them_where_the_default_device_has_none():
    # as ImageGPT's, whose gain is a torch.Tensor(width), in from_pretrained
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(DIM, device="cpu"))
        replace_norms(model, "seednorm")
    assert torch.equal(model[0].alpha, build_norm("seednorm", DIM).alpha)


def test_a_gain_that_means_another_thing_is_told():
    model = with_gain(GemmaRMSNorm)
    (replaced,) = replace_norms(model, "layernorm", mask=None)
    assert (replaced.shift, replaced.added) == (1, ("bias",))
    assert "+1 was added to its gain: load no old weights" in str(replaced)
    assert torch.equal(model[1].weight, torch.ones(DIM))
    model, x = with_gain(lambda: nn.RMSNorm(DIM)), torch.randn(3, DIM)
    nn.init.normal_(model[1].weight)
    expected, parameter = model(x), model[1].weight
    (replaced,) = replace_norms(model, "rmsnorm", mask=None, gain="1+w")
    assert replaced.shift == -1 and model[1].weight is parameter
    torch.testing.assert_close(model(x), expected)


def test_without_values_the_formula_is_measured_and_a_shift_refused():
    with torch.device("meta"):
        model = with_gain(GemmaRMSNorm)
        (replaced,) = replace_norms(model, "rmsnorm", mask=None)
        assert (replaced.norm.weight_offset, replaced.norm.eps) == (1, 1e-6)
        assert replaced.norm.weight.is_meta
        for options in ({"name": "layernorm"}, {"name": "rmsnorm", "gain": "w"}):
            with pytest.raises(ValueError, match="has no weights yet, as inside from_pretrained"):
                replace_norms(with_gain(GemmaRMSNorm), mask=None, **options)


class Initializing(OneNorm):
    """A model that initializes its modules as those of transformers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)


@pytest.mark.parametrize("name", NORM_TYPES)
def test_a_model_that_initializes_its_modules_initializes_new_norms(name):
    with torch.device("meta"):
        model = nn.Sequential(Initializing())
        replace_norms(model, name, mask=None)
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(77)
    part = copy.deepcopy(model)[0]
    part.apply(part._init_weights)
    assert torch.equal(part.linear.weight, torch.zeros(DIM, DIM))
    initial = build_norm(name, DIM).state_dict()
    for key, value in part.norm.state_dict().items():
        torch.testing.assert_close(value, initial[key])


def test_a_model_that_initializes_its_modules_is_freed_at_once():
    model = Initializing()
    replace_norms(model, "rmsnorm", mask=None)
    model = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    nn.init.zeros_(model.norm.weight)
    model.apply(model._init_weights)
    assert torch.equal(model.norm.weight, torch.ones(DIM))
    alive = weakref.ref(model)
    del model
    assert alive() is None  # without the garbage collector
