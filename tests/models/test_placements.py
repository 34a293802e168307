"""Every placement, and one that is registered here, against a transcription of its equation."""

from __future__ import annotations

import copy
from argparse import Namespace
from math import isfinite

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from reference.placements import EQUATIONS
from torch import nn

from in_process import train_here
from norm_plugin.checkpoints.average import main as average
from norm_plugin.models import fold_norms
from norm_plugin.models.layers import PlannedLayer
from norm_plugin.models.recording import read_records
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.norms import NORM_TYPES, Norm, norm_spec
from norm_plugin.placements import INPUT, OUTPUT, PLACEMENTS, SUM, Placement, register_placement
from stacks_by_hand import (
    CHECKPOINTED,
    NARROW,
    check_decoding,
    check_gradients,
    layer_norm,
    shaken,
    stack_of,
)


class AroundTheSum(Placement):
    """A norm on the input of each branch, and one on the sum: as a user's own would be."""

    norms = (INPUT, SUM)


def around(x, stack):
    for layer in stack.layers:
        for f in layer:
            x = f.sum(x + f(f.input(x)))
    return x


class OutsideTheNorms(Placement):
    """It acts at the input of a branch, where it has no norm, and around the final norm."""

    norms = (OUTPUT,)
    final_norm = True

    def enter(self, y, branch):
        return y / 2

    @staticmethod
    def after_final_norm(streams, y):
        return streams[0] + y


def outside(x, stack):
    for layer in stack.layers:
        for f in layer:
            x = x + f.output(f(x / 2))
    return x + stack.final(x)


OWN = {"around": (AroundTheSum, around), "outside": (OutsideTheNorms, outside)}


@pytest.fixture(autouse=True)
def own_placements(monkeypatch):
    """The placements of this file, as a user's own --user-dir registers them."""
    for name, (cls, equation) in OWN.items():
        register_placement(name, equation="see above", paper="none")(cls)
        monkeypatch.setitem(EQUATIONS, name, equation)
    yield
    for name in OWN:
        del PLACEMENTS[name]


every_placement = pytest.mark.parametrize("name", [*PLACEMENTS, *OWN])


QUERY_AND_KEY = ("--norm-type-query", "layernorm", "--norm-type-key", "layernorm")
OVER_ALL_CHANNELS = (*QUERY_AND_KEY, "--norm-type-value", "layernorm", "--norm-qkv-scope", "full")


CHECKPOINT = ("--checkpoint-activations",)
# Norms of queries and keys are part of a branch, which a placement calls: one placement, and the
# one that scales the heads of attention, stand for all.
EQUATION_CASES = [
    *((name, ()) for name in [*PLACEMENTS, *OWN]),
    *((name, CHECKPOINT) for name in [*CHECKPOINTED, *OWN]),
    *(
        (name, flags)
        for name in ("pre", "normformer")
        for flags in (QUERY_AND_KEY, OVER_ALL_CHANNELS)
    ),
]


@pytest.mark.parametrize(("name", "flags"), EQUATION_CASES, ids=str)
@pytest.mark.usefixtures("softmax_in_float64")
def test_forward_and_gradients_are_those_of_the_equation(name, flags, build, batch, task):
    model = shaken(build(*NARROW, "--norm-placement", name, *flags))
    pad = task.source_dictionary.pad()
    mask, prev = batch["src_tokens"].eq(pad), batch["prev_output_tokens"]
    logits = model(**batch)[0]
    real = prev.ne(pad)
    x = model.encoder.forward_embedding(batch["src_tokens"])[0] * ~mask.unsqueeze(-1)
    equation = EQUATIONS[name]
    memory = equation(x.transpose(0, 1), stack_of(model.encoder, "encoder", mask))
    y = model.decoder.embed_scale * model.decoder.embed_tokens(prev)
    y = (y + model.decoder.embed_positions(prev)).transpose(0, 1)
    if model.decoder.layernorm_embedding is not None:
        y = layer_norm(model.decoder.layernorm_embedding, y)
    y = equation(y, stack_of(model.decoder, "decoder", prev.eq(pad), memory, mask))
    by_hand = model.decoder.output_projection(y.transpose(0, 1))
    check_gradients(model, logits[real], by_hand[real])


# No placement mixes positions or keeps what it computes, as test_checks.py and
# test_placement_details.py show of each; what is left is how streams go through an incremental step
@pytest.mark.parametrize("name", [*CHECKPOINTED, *OWN])
def test_decoding_step_by_step_equals_decoding_at_once(name, build, batch):
    check_decoding(shaken(build(*NARROW, "--norm-placement", name)), batch)


# A placement calls a norm, and a norm does not depend on its place: each norm once, and each
# placement with one that has statistics.
COVERING = [
    *(("pre", norm) for norm in NORM_TYPES),
    *((placement, "powernorm") for placement in [*PLACEMENTS, *OWN]),
]


@pytest.mark.parametrize(("name", "norm"), dict.fromkeys(COVERING))
def test_three_updates_reach_every_parameter_and_every_norm_is_watched(name, norm, build, batch):
    flags = (*NARROW, "--norm-placement", name)
    if build(*flags).cfg.plan.sites:
        flags += ("--norm-type", norm)
        if not norm_spec(norm).batch_statistics:
            flags += ("--norm-type-decoder", norm)
        if norm_spec(norm).has_option("warmup_updates"):
            flags += ("--norm-warmup-updates", "1")
    model = build(*flags).double()
    reached = {key: False for key, _ in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for update in range(3):
        model.set_num_updates(update)
        optimizer.zero_grad()
        model(**batch)[0].square().mean().backward()
        for key, parameter in model.named_parameters():
            assert torch.isfinite(parameter.grad).all(), key
            reached[key] |= bool(parameter.grad.any())
        optimizer.step()
    assert [key for key, has_gradient in reached.items() if not has_gradient] == []
    assert set(model.nan_check.last) == norms_of(model)


def norms_of(model):
    return {path for path, module in model.named_modules() if isinstance(module, Norm)}


# Hooks: on the norms' inputs, inside an attention, and around the final norm
@pytest.mark.parametrize("name", ["pre", "normformer", "residual", "siamese"])
def test_a_copy_computes_by_itself(name, build, batch):
    """--store-ema copies the model; the hooks of the copy must serve the copy."""
    model = shaken(build(*NARROW, "--norm-placement", name))
    before = model(**batch)[0]
    other = copy.deepcopy(model.train())
    for value in [*model.parameters(), *model.buffers()]:
        value.data.zero_()
    assert torch.equal(other.eval()(**batch)[0], before)


@pytest.mark.parametrize("name", ["residual", "admin"])
def test_a_resumed_run_with_dropped_layers_ends_bit_equal(name, toy, tmp_path, monkeypatch):
    flags = ("--norm-placement", name, "--encoder-layerdrop", 0.4, "--decoder-layerdrop", 0.4)
    flags += ("--max-update", 6, "--save-interval-updates", 3, "--no-epoch-checkpoints")
    flags += ("--disable-validation", "--store-ema", "--checkpoint-activations")
    flags += ("--norm-record", 1)
    through = train_here(monkeypatch, toy, tmp_path / "through", *flags)
    (halfway,) = (tmp_path / "through").glob("checkpoint_*_3.pt")
    resumed = train_here(monkeypatch, toy, tmp_path / "resumed", *flags, "--restore-file", halfway)
    others = resumed.get_model().state_dict()
    for key, value in through.get_model().state_dict().items():
        assert torch.equal(others[key], value), key
    check_records(through.get_model(), tmp_path / "through" / "norm_record.jsonl.gz")
    check_average(tmp_path / "through", toy)


def check_records(model, file):
    """Every norm and every layer are recorded, but those that an update drops.

    The encoder gets no gradient where the one layer of the decoder is dropped.
    """
    layers = {path for path, module in model.named_modules() if isinstance(module, PlannedLayer)}
    records = read_records(file)[1:]
    assert [record["update"] for record in records] == [1, 2, 3, 4, 5, 6]
    for part, paths, key in (
        ("sites", norms_of(model), "g_mu"),
        ("layers", layers, "hidden_gradient_norm"),
    ):
        values = [
            (path, measures[key])
            for record in records
            for path, measures in record[part].items()
            if key in measures
        ]
        assert {path for path, _ in values} == paths
        assert all(isfinite(value) for _, value in values)


def check_average(folder, toy):
    """The mean of two checkpoints is loaded by the hub, and translates."""
    averaged = folder / "averaged.pt"
    average(["--inputs", str(folder), "--last-updates", "2", "--output", str(averaged)])
    first, second = (
        load_checkpoint_to_cpu(str(path))["model"] for path in folder.glob("checkpoint_?_?.pt")
    )
    hub = NormTransformerModel.from_pretrained(str(folder), averaged.name, str(toy))
    for key, value in hub.models[0].state_dict().items():
        if value.is_floating_point():
            # the mean of two is rounded once
            torch.testing.assert_close(value, (first[key] + second[key]) / 2, rtol=1e-6, atol=1e-7)
    assert isinstance(hub.translate("the dog sees the cat .", beam=1, max_len_b=3), str)


@every_placement
def test_folding_changes_no_logits(name, build, batch):
    """Whatever folds: what does not says why."""
    flags = (*NARROW, "--norm-placement", name)
    if build(*flags).cfg.plan.sites:
        flags += ("--norm-type", "batchnorm", "--norm-layer-scale-groups", "0")
    model = build(*flags)
    model.train()(**batch)  # so that running statistics are not the initial ones
    shaken(model)
    before = model(**batch)[0]
    foldings = fold_norms(model)
    unfolded = {choice.site for choice in model.cfg.plan.sites if choice.norm != "none"}
    assert {folding.site for folding in foldings if folding.reason} == unfolded
    if name == "around":
        assert [folding.reason for folding in foldings if folding.site.flag == "encoder-ffn"] == [
            "it shares its flag with encoder-ffn-sum, not foldable",
            "its output is the residual stream, not only the input of linear maps",
        ]
    # the products of folding are rounded to float64
    torch.testing.assert_close(model(**batch)[0], before, rtol=1e-9, atol=1e-9)


@every_placement
def test_a_pruned_model_computes_with_the_layers_that_it_kept(name, build_yaml, batch):
    """The layers keep the constants of their training, not those of a stack of that depth."""
    settings = {"norm_placement": name, "encoder_layers": 5, "decoder_layers": 4}
    pruning = {"encoder_layers_to_keep": "0,2,4", "decoder_layers_to_keep": "1,3"}
    whole = shaken(build_yaml(**settings))
    pruned = build_yaml(**settings, **pruning).double().eval()
    pruned.load_state_dict(whole.state_dict(), model_cfg=Namespace(arch="any", **pruning))
    for stack, layers in ((whole.encoder, (0, 2, 4)), (whole.decoder, (1, 3))):
        stack.layers = nn.ModuleList(stack.layers[layer] for layer in layers)
    assert torch.equal(pruned(**batch)[0], whole(**batch)[0])
