"""What single placements have of their own: weights, constants, foldings, refusals.

What Admin measures is in ``test_admin.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import utils
from reference.placements import GAINS

from norm_plugin.models import fold_norms
from norm_plugin.models.initialization import value_maps
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import (
    PLACEMENTS,
    LayerPlace,
    Placement,
    placement_class,
    register_placement,
)
from stacks_by_hand import NARROW, check_decoding, shaken, stack_of


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
        "final_layer_norm": "RMSNorm",
        "ffn_output_norm": "RMSNorm",
    }
    assert [choice.site.name for choice in model.cfg.plan.sites][:5] == [
        *("encoder-self", "encoder-self-output", "encoder-ffn", "encoder-ffn-output"),
        "encoder-final",
    ]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_stack_alone_has_its_own_constants(side):
    layers = {"encoder_layers": 0, "decoder_layers": 0, f"{side}_layers": 8}
    place = LayerPlace(side, 1, **layers, dim=4, branches=("self", "ffn"))
    x = torch.ones(1, 1, 4)
    assert placement_class("deepnorm")(place).join(x, 0 * x, "self")[0, 0, 0] == 16 ** (1 / 4)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_keeps_nothing_of_a_forward(name):
    place = LayerPlace("encoder", 2, 3, 3, dim=4, branches=("self", "ffn"), heads=2)
    placement = placement_class(name).at(place)(place)
    kept = []
    x = placement.begin(torch.ones(2, 1, 4))
    for branch in place.branches:
        x, z = placement.read(x, branch, lambda branch, slot, y: y)
        kept += vars(placement).values()
        x = placement.join(x, z, branch)
    placement.end(x)
    values = (*kept, *vars(placement).values())
    assert not any(isinstance(value, (torch.Tensor, list)) for value in values)


@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_stack_alone_has_its_own_gain(side, name, build):
    layer = build().encoder.layers[0]
    layers = {"encoder_layers": 0, "decoder_layers": 0, f"{side}_layers": 8}
    dim = layer.embed_dim
    placement_class(name).initialize(
        layer, LayerPlace(side, 1, **layers, dim=dim, branches=("self", "ffn"))
    )
    gain = GAINS[name](side, layers["encoder_layers"], layers["decoder_layers"])
    for linear_map in value_maps(layer):
        fan = linear_map.in_features + linear_map.out_features
        # normal, 128 x 128 values or more: their variance has a standard error of 1.1 %
        torch.testing.assert_close(
            linear_map.weight.var().item(), gain**2 * 2 / fan, rtol=0.05, atol=0
        )


def test_mix_has_post_norm_in_the_first_quarter():
    for layers, wanted in ((1, 1), (2, 1), (7, 1), (8, 2), (12, 3)):
        places = [
            LayerPlace("encoder", index, layers, 6, dim=4, branches=("self", "ffn"))
            for index in range(1, layers + 1)
        ]
        names = [placement_class("mix").at(place).__name__ for place in places]
        assert names == ["Post"] * wanted + ["Pre"] * (layers - wanted)


def test_what_folds_under_which_placement(build):
    flags = ("--norm-type-encoder", "batchnorm", "--norm-layer-scale-groups", "0")
    reasons = {
        name: {
            folding.site.name: folding.reason
            for folding in fold_norms(build("--norm-placement", name, *flags))
            if folding.site.side == "encoder"
        }
        for name in ("sandwich", "scaled-pre", "residual")
    }
    assert reasons["scaled-pre"] == dict.fromkeys(
        ("encoder-self", "encoder-ffn", "encoder-final"), ""
    )
    assert set(reasons["sandwich"].values()) == {""}
    assert reasons["residual"]["encoder-final"] == "the placement changes its input or its output"


def test_the_sides_can_have_placements_of_their_own(build, build_yaml):
    flags = ("--norm-placement-encoder", "sandwich", "--norm-placement", "residual")
    yaml = {"norm_placement_encoder": "sandwich", "norm_placement": "residual"}
    for model in (build(*flags), build_yaml(**yaml)):
        assert model.cfg.plan.placement == {"encoder": "sandwich", "decoder": "residual"}
        placements = [type(stack.layers[1].placement) for stack in (model.encoder, model.decoder)]
        assert placements == [placement_class("sandwich"), placement_class("residual")]
    pre = build("--norm-placement-decoder", "pre")
    assert pre.cfg.plan.placement == {"encoder": "post", "decoder": "pre"}


def test_queries_and_keys_have_a_norm_only_when_asked(build):
    plain = build("--norm-type", "rmsnorm")
    assert not [key for key in plain.state_dict() if "query" in key or "key_norm" in key]
    flags = ("--norm-type-value", "rmsnorm", "--norm-type-encoder", "scalenorm")
    model = build("--norm-type-key", "rmsnorm", *flags)
    attentions = {"encoder": ["self"], "decoder": ["self", "cross"]}
    for side, branches in attentions.items():
        for layer in getattr(model, side).layers:
            for branch in branches:
                norm = getattr(layer, f"{branch}_key_norm")
                assert type(norm) is norm_spec("rmsnorm").cls
                assert norm.dim == layer.self_attn.head_dim
                assert not hasattr(layer, f"{branch}_query_norm")
    names = [choice.site.name for choice in model.cfg.plan.sites if choice.site.flag == "key"]
    assert names == ["encoder-key-self", "decoder-key-self", "decoder-key-cross"]
    reasons = {folding.site.name: folding.reason for folding in fold_norms(model)}
    assert {reasons[name] for name in names} == {
        "its output goes into the product of queries and keys"
    }
    assert reasons["encoder-value-self"] == "its output does not go into linear maps alone"


@pytest.mark.parametrize(
    "name", [name for name, cls in PLACEMENTS.items() if cls.needs_bounded_norms]
)
def test_norms_beside_the_branches_may_be_unbounded(name, build):
    specs = [norm_spec(norm) for norm in NORM_TYPES]
    norm = next(s.name for s in specs if not (s.cls.bounded or s.batch_statistics))
    flags = ("--norm-placement", name, "--layernorm-embedding")
    build(*flags, "--norm-type-embedding", norm, "--norm-type-query", norm, "--norm-type-key", norm)
    with pytest.raises(ValueError, match=f"encoder-ffn is {norm}, which does not bound its output"):
        build(*flags, "--norm-type-encoder-ffn", norm)


@pytest.mark.parametrize("parent", ["pre", "post"])
def test_a_placement_that_inherits_is_not_the_default(parent, build, own_registry):
    cls = type("Heir", (placement_class(parent),), {})
    register_placement("heir", equation="none", paper="none")(cls)
    flags = ("--encoder-normalize-before",)
    assert build(*flags).cfg.plan.placement == {"encoder": "pre", "decoder": "post"}
    assert build("--norm-placement", "heir").cfg.plan.placement["encoder"] == "heir"


def crossed(x, stack):
    y = x
    for layer in stack.layers:
        for f in layer:
            x, y = y + f(f.input(x + f.own(y))), x
    return stack.final(x + stack.own["final_last_norm"](y))


def test_a_two_stream_placement_of_a_user_dir_is_one_file(
    build, batch, tmp_path, task, own_registry
):
    """The other example of docs/extending.md."""
    page = Path(__file__).parents[2] / "docs" / "extending.md"
    code = re.search(
        r'@register_placement\("crossed".*?(?=```)', page.read_text("utf-8"), re.DOTALL
    )
    folder = tmp_path / "my_streams"
    folder.mkdir()
    imports = "from norm_plugin.placements import INPUT, Placement, register_placement\n"
    (folder / "__init__.py").write_text(imports + code.group(), encoding="utf-8")
    utils.import_user_module(SimpleNamespace(user_dir=str(folder)))
    model = shaken(build(*NARROW, "--norm-placement", "crossed"))
    mask = batch["src_tokens"].eq(task.source_dictionary.pad())
    x = model.encoder.forward_embedding(batch["src_tokens"])[0] * ~mask.unsqueeze(-1)
    by_hand = crossed(x.transpose(0, 1), stack_of(model.encoder, "encoder", mask))
    encoded = model.encoder(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0]
    real = ~mask.t()
    torch.testing.assert_close(encoded[real], by_hand[real], rtol=1e-9, atol=1e-9)
    check_decoding(model, batch)


def test_a_placement_that_acts_at_the_final_norm_needs_one(own_registry):
    cls = type("Merged", (Placement,), {"streams": 2})
    with pytest.raises(ValueError, match="'merged' has final_norm = False"):
        register_placement("merged", equation="none", paper="none")(cls)
    assert "merged" not in PLACEMENTS


@pytest.mark.parametrize(("layers", "start"), [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layer_scale_starts_smaller_in_a_deeper_stack(layers, start):
    place = LayerPlace("encoder", 1, layers, 2, dim=3, branches=("self", "ffn"))
    scale = placement_class("layer-scale")(place).scale
    assert {name: vector.tolist() for name, vector in scale.items()} == {
        "self": pytest.approx([start] * 3),  # float32
        "ffn": pytest.approx([start] * 3),
    }
