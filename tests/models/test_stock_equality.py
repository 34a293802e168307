"""With ``--norm-type layernorm`` the model is fairseq's own, key by key and bit by bit."""

from __future__ import annotations

import pytest
import torch
from fairseq import models, options
from fairseq.models import ARCH_MODEL_INV_REGISTRY

from norm_plugin.norms import NORM_TYPES

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


def test_all_norms_share_one_initialization(build):
    reference = build("--norm-placement", "pre").state_dict()
    shared = [key for key in reference if "norm" not in key]
    for name in NORM_TYPES:
        other = build("--norm-placement", "pre", "--norm-type", name).state_dict()
        assert all(torch.equal(other[key], reference[key]) for key in shared), name


def test_encoder_layers_keep_off_the_fused_layernorm(build):
    """fairseq 0.12.2 asks this attribute before it runs a loaded layer as one LayerNorm kernel."""
    assert [layer.can_use_fastpath for layer in build().encoder.layers] == [False, False]
