"""Norms folded into the linear maps after them: the same logits, and why a site does not fold."""

from __future__ import annotations

import argparse
import copy

import pytest
import torch
from torch.nn.utils import prune

from norm_plugin.models import fold_norms
from norm_plugin.models.config import build_config
from norm_plugin.models.settle import settle, store_folded
from norm_plugin.norms import NORM_TYPES, Norm, norm_spec
from norm_plugin.norms.identity import Identity

PRE = ("--norm-placement", "pre")
STREAM = "its output is the residual stream, not only the input of linear maps"
ANEW = (
    "it is computed from each input, in inference too; a norm of your own that is not needs an "
    "inference_map()"
)
IN_LAYERS = ["encoder-self", "encoder-ffn", "decoder-self", "decoder-cross", "decoder-ffn"]
FOLDABLE = [
    name
    for name in NORM_TYPES
    if norm_spec(name).batch_statistics
    and norm_spec(name).cls.inference_map is not Norm.inference_map
]


def plain(name, *flags):
    """The flags for ``name`` without RMS pre-scaling at every site of a pre-norm model."""
    spec = norm_spec(name)
    if spec.has_option("layer_scale_groups"):
        flags += ("--norm-layer-scale-groups", "0")
    if spec.has_option("warmup_updates"):
        flags += ("--norm-warmup-updates", "1")
    return ("--norm-type", name, "--norm-type-decoder", name, *PRE, *flags)


def trained(model, batch):
    """``model`` in evaluation, with statistics, gains and offsets of a channel's own each."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.3 * noise.to(parameter.dtype)
    for update in range(3):
        model.set_num_updates(update)
        model.train()(**batch)
    return model.eval()


def reasons(model):
    return {folding.site.name: folding.reason for folding in fold_norms(model)}


def norms_left(model):
    names = [name for name, module in model.named_modules() if name.endswith("layer_norm")]
    return [name for name in names if not isinstance(model.get_submodule(name), Identity)]


# Folded weights are rounded once more, which attention makes larger where its logits are large, as
# those of repbn. In float64 what is left is its softmax, which fairseq takes in float32 always.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-3)])
@pytest.mark.parametrize("name", FOLDABLE)
def test_logits_are_the_same(name, dtype, tolerance, build, batch):
    model = trained(build(*plain(name)).to(dtype), batch)
    expected = model(**batch)[0]
    reason_at = reasons(model)
    assert [site for site, reason in reason_at.items() if not reason] == [
        *("encoder-self", "encoder-ffn", "encoder-final"),
        *("decoder-self", "decoder-cross", "decoder-ffn"),
    ]
    assert norms_left(model) == ["decoder.layer_norm"]
    torch.testing.assert_close(model(**batch)[0], expected, rtol=tolerance, atol=tolerance)


# batchnorm alone: float32 logits of size 1 behind ten folded maps, each some dozen eps (1.2e-7)
# off; what one forgotten offset does is a hundred times this
OF_BATCHNORM = {"rtol": 1e-4, "atol": 1e-4}


def test_layers_that_layer_drop_leaves_out_fold_too(build, batch):
    flags = ("--encoder-layerdrop", "0.9", "--decoder-layerdrop", "0.9")
    model = trained(build(*plain("batchnorm"), *flags), batch)
    expected = model(**batch)[0]
    fold_norms(model.train())
    assert norms_left(model) == ["decoder.layer_norm"]
    torch.testing.assert_close(model.eval()(**batch)[0], expected, **OF_BATCHNORM)


def test_shared_embeddings_stay_as_they_are(build, batch):
    model = trained(build(*plain("batchnorm", "--share-all-embeddings")), batch)
    expected, embeddings = model(**batch)[0], model.encoder.embed_tokens.weight.clone()
    reason_at = reasons(model)
    assert reason_at["decoder-final"] == "output_projection shares its weights with another module"
    assert torch.equal(model.decoder.output_projection.weight, embeddings)
    torch.testing.assert_close(model(**batch)[0], expected, **OF_BATCHNORM)


def test_only_what_folds_is_folded(build, batch):
    model = trained(
        build("--norm-type", "batchnorm", "--norm-layer-scale-groups", "0", *PRE), batch
    )
    expected = model(**batch)[0]
    before = copy.deepcopy(model.decoder.layers[0].fc1.weight)
    reason_at = reasons(model)
    assert reason_at == {
        **dict.fromkeys(["encoder-self", "encoder-ffn", "encoder-final"], ""),
        **dict.fromkeys(["decoder-self", "decoder-cross", "decoder-ffn", "decoder-final"], ANEW),
    }
    assert torch.equal(model.decoder.layers[0].fc1.weight, before)
    torch.testing.assert_close(model(**batch)[0], expected, **OF_BATCHNORM)


RMS_PRESCALE = "its RMS pre-scaling divides each position by the position's own RMS"
NO_OFFSET = "has no bias to absorb the offset"
JOINT = "k_proj and v_proj receive the outputs of both encoder and decoder"
MABN = ("--norm-type", "mabn", "--norm-type-decoder", "mabn", "--norm-warmup-updates", "1")
WITH_SCALE = ("--norm-type", "powernorm", *PRE, "--norm-layer-scale-groups")
REASONS = {
    "embeddings": (
        plain("batchnorm", "--layernorm-embedding"),
        dict.fromkeys(["encoder-embedding", "decoder-embedding"], STREAM),
    ),
    "RMS pre-scaling": ((*WITH_SCALE, "1"), {"encoder-ffn": RMS_PRESCALE}),
    "RMS pre-scaling by groups": ((*WITH_SCALE, "4"), {"encoder-ffn": RMS_PRESCALE}),
    "post-norm": ((*MABN, "--norm-placement", "post"), dict.fromkeys(IN_LAYERS, STREAM)),
    "stacks that differ": (
        (*MABN, "--encoder-normalize-before"),
        {
            **dict.fromkeys(["encoder-self", "encoder-ffn", "encoder-final"], ""),
            **dict.fromkeys(["decoder-self", "decoder-cross", "decoder-ffn"], STREAM),
        },
    ),
    "output projection": (plain("batchnorm"), {"decoder-final": f"output_projection {NO_OFFSET}"}),
    "projection of the output": (
        plain("batchnorm", "--decoder-output-dim", "64"),
        {"decoder-final": f"project_out_dim {NO_OFFSET}"},
    ),
    "adaptive softmax": (
        plain("batchnorm", "--adaptive-softmax-cutoff", "10,20"),
        {"decoder-final": "adaptive_softmax is of type AdaptiveSoftmax, not a plain linear map"},
    ),
    "joint attention": (
        plain("batchnorm", "--cross-self-attention", "--no-cross-attention"),
        {"decoder-self": JOINT, "encoder-final": JOINT, "decoder-ffn": ""},
    ),
}


@pytest.mark.parametrize(("flags", "expected"), REASONS.values(), ids=REASONS)
def test_why_a_norm_stays(flags, expected, build):
    found = reasons(build(*flags))
    assert {site: found[site] for site in expected} == expected


def test_another_kind_of_map_does_not_fold(build, batch):
    class Quantized(torch.nn.Linear):
        pass

    model = trained(build(*plain("batchnorm")), batch)
    layer = model.encoder.layers[1]
    layer.fc1 = Quantized(layer.fc1.in_features, layer.fc1.out_features)
    expected = model(**batch)[0]
    assert reasons(model)["encoder-ffn"] == "fc1 is of type Quantized, not a plain linear map"
    # no layer of the site folds then
    assert "encoder.layers.0.final_layer_norm" in norms_left(model)
    torch.testing.assert_close(model(**batch)[0], expected, **OF_BATCHNORM)


def test_a_map_whose_weight_is_computed_does_not_fold(build, batch):
    model = trained(build(*plain("batchnorm")), batch)
    prune.l1_unstructured(model.encoder.layers[1].fc1, "weight", 0.3)
    expected = model(**batch)[0]
    assert reasons(model)["encoder-ffn"] == "fc1 computes its weight anew in each forward"
    torch.testing.assert_close(model(**batch)[0], expected, **OF_BATCHNORM)


def test_the_norm_after_the_encoder_stays_if_another_part_may_read_it(build, batch):
    model = trained(build(*plain("batchnorm")), batch)
    model.gating_network = torch.nn.Linear(1, 1)  # as in fairseq's translation_moe
    found = reasons(model)
    assert found["encoder-final"].startswith("gating_network, another part of the model, may")
    assert found["encoder-ffn"] == ""


def folded(plan, gone):
    """``plan`` with ``none`` at every site for which ``gone`` is true."""
    for choice in plan.sites:
        plan = plan.without(choice.site) if gone(choice.site) else plan
    return plan


def test_options_that_no_norm_is_left_to_take_are_unset():
    # powernorm goes, batchnorm stays: alpha_fwd must go, the pre-scaling that both have stays
    args = argparse.Namespace(
        norm_type="powernorm",
        norm_type_decoder_ffn="batchnorm",
        norm_alpha_fwd=0.8,
        norm_warmup_updates=1,
        norm_layer_scale_groups=0,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
    )
    store_folded(args, folded(settle(args), lambda site: site.flag.startswith("encoder-")))
    assert args.norm_type_encoder_self == args.norm_type_encoder_final == "none"
    assert args.norm_alpha_fwd is None and args.norm_warmup_updates is None
    assert args.norm_layer_scale_groups == 0
    build_config(args)  # which refuses an option that no norm has


def test_tokens_of_statistics_that_no_norm_takes_are_unset():
    args = argparse.Namespace(
        norm_type="batchnorm",
        norm_ghost_batch_tokens=32,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
    )
    plan = settle(args)
    store_folded(args, plan.without(plan.sites[0].site))
    assert args.norm_ghost_batch_tokens == 32  # batchnorm is left elsewhere
    store_folded(args, folded(plan, lambda site: site.side == "encoder"))
    assert args.norm_ghost_batch_tokens is None
    build_config(args)
