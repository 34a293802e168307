"""With ``--norm-type layernorm`` the model is fairseq's own, key by key and bit by bit."""

from __future__ import annotations

import pytest
import torch

from norm_plugin.norms import NORM_TYPES

ARCHITECTURES = ["iwslt_de_en", "wmt_en_de", "wmt_en_de_big", "wmt_en_de_big_t2t"]
# The widths are what the architectures are about, but big ones are slow to draw
SMALL = ("--encoder-ffn-embed-dim", "64", "--share-all-embeddings")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_same_keys_weights_and_output(name, build, batch):
    stock = build(*SMALL, arch=f"transformer_{name}").eval()
    ours = build(*SMALL, arch=f"norm_transformer_{name}").eval()
    theirs = stock.state_dict()
    assert list(ours.state_dict()) == list(theirs)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.state_dict().items())
    assert torch.equal(ours(**batch)[0], stock(**batch)[0])


def test_a_stock_state_dict_loads_and_gives_the_same_output(build, batch):
    stock = build(arch="transformer_iwslt_de_en", seed=1).eval()
    ours = build(arch="norm_transformer_iwslt_de_en", seed=2).eval()
    assert not torch.equal(ours(**batch)[0], stock(**batch)[0])
    ours.load_state_dict(stock.state_dict(), strict=True)
    assert torch.equal(ours(**batch)[0], stock(**batch)[0])


@pytest.mark.parametrize("name", NORM_TYPES)
def test_all_norms_share_one_initialisation(name, build):
    reference = build("--norm-placement", "pre").state_dict()
    other = build("--norm-placement", "pre", "--norm-type", name).state_dict()
    shared = [key for key in reference if "norm" not in key]
    assert shared and all(torch.equal(other[key], reference[key]) for key in shared)


def test_encoder_layers_keep_off_the_fused_layernorm(build):
    """fairseq 0.12.2 asks this attribute before it runs a loaded layer as one LayerNorm kernel."""
    assert [layer.can_use_fastpath for layer in build().encoder.layers] == [False, False]
