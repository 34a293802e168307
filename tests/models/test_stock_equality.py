"""The model with ``--norm-type layernorm`` is fairseq's own, key by key and bit by bit."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from fairseq import models, options
from fairseq.models import ARCH_MODEL_INV_REGISTRY

from norm_plugin.norms import NORM_TYPES
from norm_plugin.norms.base import position_leak_check

NARROWED = ["iwslt_de_en", "wmt_en_de_big_t2t"]  # post-norm and pre-norm
SMALL = (
    *("--encoder-embed-dim", "64", "--decoder-embed-dim", "64", "--share-all-embeddings"),
    *("--encoder-ffn-embed-dim", "64", "--decoder-ffn-embed-dim", "64"),
)


def parameters(arch, task):
    """Names and shapes of what the architecture alone decides, without a value of them."""
    args = options.parse_args_and_arch(options.get_training_parser(), ["DATA", "--arch", arch])
    with torch.device("meta"):
        model = models.build_model(args, task)
    return [(name, tuple(value.shape)) for name, value in model.state_dict().items()]


@pytest.mark.parametrize("name", ARCH_MODEL_INV_REGISTRY["transformer"])
def test_each_stock_architecture_has_its_own_of_the_same_shape(name, task):
    stock = parameters(name, task)
    assert len(stock) > 50
    assert parameters(f"norm_{name}", task) == stock


@pytest.mark.parametrize("name", NARROWED)
def test_same_keys_weights_and_output(name, build, batch):
    stock = build(*SMALL, arch=f"transformer_{name}").eval()
    ours = build(*SMALL, arch=f"norm_transformer_{name}").eval()
    theirs = stock.state_dict()
    assert list(ours.state_dict()) == list(theirs)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.state_dict().items())
    assert torch.equal(ours(**batch)[0], stock(**batch)[0])


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


STATES = {
    "float64": partial(default_dtype, torch.float64),
    "bfloat16": partial(default_dtype, torch.bfloat16),
    "inference": torch.inference_mode,
    "deterministic": deterministic,
    "anomaly": torch.autograd.detect_anomaly,
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
}


def failure_or_output(model, batch):
    """The output of a training step, or how torch refuses it."""
    try:
        output = model.train()(**batch)[0]
        output.float().sum().backward()
    except RuntimeError as error:
        return str(error)
    return output.detach()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("state", STATES)
def test_what_torch_is_set_to_when_a_model_is_built_changes_what_it_changes_in_stock(
    state, build, batch, monkeypatch
):
    monkeypatch.setattr(position_leak_check, "_TRUE", set())  # of this process
    with STATES[state]():
        models = [build(*SMALL, arch=f"{ours}transformer_iwslt_de_en") for ours in ("", "norm_")]
    stock, ours = (failure_or_output(model, batch) for model in models)
    assert stock == ours if isinstance(stock, str) else torch.equal(stock, ours)
    assert isinstance(stock, str) == (state in ("bfloat16", "inference"))


def test_all_norms_share_one_initialization(build):
    reference = build("--norm-placement", "pre").state_dict()
    shared = [key for key in reference if "norm" not in key]
    for name in NORM_TYPES:
        other = build("--norm-placement", "pre", "--norm-type", name).state_dict()
        assert all(torch.equal(other[key], reference[key]) for key in shared), name


def test_encoder_layers_keep_off_the_fused_layernorm(build):
    """fairseq 0.12.2 asks this attribute before it runs a loaded layer as one LayerNorm kernel."""
    assert [layer.can_use_fastpath for layer in build().encoder.layers] == [False, False]


def first_layers(build, stack, *flags):
    """The first layer of stock's stack and of ours, in training, with the same weights."""
    arches = ("transformer_iwslt_de_en", "norm_transformer_iwslt_de_en")
    return [getattr(build(*SMALL, *flags, arch=arch), stack).layers[0].train() for arch in arches]


def equal(stock, ours):
    """Whether two nested lists, tuples or dictionaries of tensors are equal to the last bit."""
    if isinstance(stock, dict):
        return stock.keys() == ours.keys() and all(equal(stock[key], ours[key]) for key in stock)
    if isinstance(stock, (list, tuple)):
        return len(stock) == len(ours) and all(map(equal, stock, ours))
    return torch.equal(stock, ours) if isinstance(stock, torch.Tensor) else stock is ours


def test_an_encoder_layer_masks_what_it_is_told(build):
    x, mask = torch.randn(5, 2, 64), torch.eye(5)
    stock, ours = (layer(x, None, attn_mask=mask) for layer in first_layers(build, "encoder"))
    assert torch.equal(ours, stock)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("flags", [(), ("--cross-self-attention",)])
def test_a_decoder_layer_attends_as_stock(build, flags, masked):
    """The keys and what is masked, with the encoder's output before the decoder's or without."""
    x, memory = torch.randn(3, 2, 64), torch.randn(4, 2, 64)
    mask = torch.full((3, 3), float("-inf")).triu(1) if masked else None
    padding = torch.tensor([[False] * 3, [False, False, True]]) if masked else None
    given = {"self_attn_mask": mask, "self_attn_padding_mask": padding, "need_head_weights": True}
    stock, ours = (
        layer(x, memory, None, **given) for layer in first_layers(build, "decoder", *flags)
    )
    assert equal(stock, ours)
