"""``norm_transformer_lm``: fairseq's language model, bit by bit, and what its norms let through."""

from __future__ import annotations

import argparse
import copy
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from composed import configure
from fairseq import models
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import TokenBlockDataset
from fairseq.models import ARCH_MODEL_INV_REGISTRY
from omegaconf import OmegaConf

from characters import batch, build, command, task_of
from in_process import DISTINCT
from norm_plugin.norms import NORM_TYPES, Norm, norm_spec
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

every_norm = pytest.mark.parametrize("name", DISTINCT)
CUTOFFS = {"adaptive_input_cutoff": "8,12", "adaptive_softmax_cutoff": "8,12"}
EQUAL = [
    ("transformer_lm", {}),  # post-norm, with projections to and from 512
    ("transformer_lm", {"character_embeddings": True, "character_filters": "[(1, 4)]"}),
    ("transformer_lm_gpt2_tiny", {"share_decoder_input_output_embed": True}),
    ("transformer_lm_baevski_wiki103", CUTOFFS),  # tied, and without a final norm
    ("transformer_lm_gpt3_small", {}),  # learned positions, tied embeddings
]


def with_norm(text, name, warmup=2):
    """A tiny model with norm ``name`` at every site, and its task."""
    settings = {"norm_type": name}
    if norm_spec(name).has_option("warmup_updates"):
        settings["norm_warmup_updates"] = warmup
    return build(text, **settings)


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, Norm)]


# ---- equal to fairseq's -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCH_MODEL_INV_REGISTRY["transformer_lm"])
def test_each_stock_architecture_has_its_own_of_the_same_shape(name, text):
    """Its sizes, but for few layers, and cutoffs that are not for a large dictionary."""
    shapes = []
    for arch in (name, f"norm_{name}"):
        args = argparse.Namespace(arch=arch, decoder_layers=2, max_target_positions=12)
        if "wiki103" in name:
            vars(args).update(CUTOFFS)
        with torch.device("meta"):
            model = models.build_model(args, task_of(text))
        shapes.append([(key, tuple(value.shape)) for key, value in model.state_dict().items()])
    assert len(shapes[0]) > 20
    assert shapes[1] == shapes[0]


@pytest.mark.parametrize(("name", "settings"), EQUAL)
def test_layernorm_gives_the_loss_and_the_gradients_of_stock(name, settings, text):
    results = []
    for arch in (name, f"norm_{name}"):
        model, task = build(text, arch, **settings)
        adaptive = model.decoder.adaptive_softmax is not None
        criterion = (AdaptiveLoss if adaptive else CrossEntropyCriterion)(task, False)
        torch.manual_seed(4)
        loss, *_ = criterion(model.train(), batch(task))
        loss.backward()
        results.append((loss, model))
    (loss, stock), (our_loss, ours) = results
    assert torch.equal(our_loss, loss) and torch.isfinite(loss)
    assert list(ours.state_dict()) == list(stock.state_dict())
    gradients = {key: value.grad for key, value in ours.named_parameters()}
    for key, value in stock.named_parameters():
        assert torch.equal(gradients.pop(key), value.grad), key
    assert not gradients


@every_norm
def test_decoding_step_by_step_gives_the_logits_of_one_forward(name, text):
    model, task = with_norm(text, name)
    tokens = batch(task)["net_input"]["src_tokens"]
    for update in range(3):  # past the warm-up
        model.set_num_updates(update)
        model.train()(tokens)
    model.eval()
    tokens, state = tokens[:3], {}  # whole rows: a step of padding is not computed
    whole = model(tokens)[0]
    for length in range(1, tokens.size(1) + 1):
        step = model.decoder(tokens[:, :length], incremental_state=state)[0][:, -1]
        # float32 sums in another order, through two layers
        torch.testing.assert_close(step, whole[:, length - 1], rtol=1e-4, atol=1e-5)


# ---- what a position sees -----------------------------------------------------------------------


@every_norm
@pytest.mark.parametrize("after_warmup", [False, True])
def test_a_position_sees_its_future_only_where_the_norm_says_so(name, after_warmup, text):
    model, task = with_norm(text, name)
    tokens = batch(task)["net_input"]["src_tokens"]
    model.train()
    for update in range(3 if after_warmup else 0):
        model.set_num_updates(update)
        model(tokens)
    model.set_num_updates(3 if after_warmup else 0)
    others = tokens.clone()
    others[:, 5:] = tokens[:, 5:].flip(0)
    logits, other_logits = (copy.deepcopy(model)(each)[0][:, :5] for each in (tokens, others))
    real = tokens[:, :5].ne(task.source_dictionary.pad())
    spec = norm_spec(name)
    sees = spec.batch_statistics
    if after_warmup:
        sees = sees and spec.cls.mixes_after_warmup
    assert (not torch.equal(logits[real], other_logits[real])) == sees


@every_norm
def test_norm_type_reaches_every_site_and_warns_of_the_future(name, text, caplog):
    with caplog.at_level(logging.WARNING, logger="norm_plugin"):
        model, _ = with_norm(text, name)
    spec = norm_spec(name)
    # two norms in each of two layers, and the final one
    assert [type(norm) for norm in norms_of(model)] == [spec.cls] * 5
    warned = any("sees its future" in message for message in caplog.messages)
    assert warned == spec.batch_statistics


def test_no_warning_where_only_the_warmup_would_leak_and_there_is_none(text, caplog):
    quiet = [
        name
        for name in NORM_TYPES
        if issubclass(norm_spec(name).cls, BatchStatisticsNorm)
        and not norm_spec(name).cls.mixes_after_warmup
    ]
    assert quiet
    with caplog.at_level(logging.WARNING, logger="norm_plugin"):
        for name in quiet:
            with_norm(text, name, warmup=0)
    assert not caplog.messages


# ---- settings -----------------------------------------------------------------------------------


def test_yaml_keys_reach_the_model(text):
    dictionary = task_of(text).source_dictionary
    task = SimpleNamespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        args=SimpleNamespace(tokens_per_sample=12),
    )
    cfg = {
        "lr_scheduler": {"warmup_updates": 7},
        "model": {
            "_name": "norm_transformer_lm_char",
            "decoder_layers": 1,
            "norm_type": "powernorm",
            "norm_placement": "post",
            "character_embedding_dim": 3,  # fairseq's, which no function fills in
        },
    }
    cfg = OmegaConf.create(cfg)
    OmegaConf.set_struct(cfg, True)
    model = models.build_model(cfg.model, task)
    assert [norm.warmup_updates for norm in norms_of(model)] == [7, 7]
    assert not model.decoder.layers[0].normalize_before
    assert model.max_positions() == 12  # --tokens-per-sample of the task
    # and a model built from what was stored is the same one, without that task
    stored = OmegaConf.create(OmegaConf.to_container(cfg.model, resolve=True))
    task.args.tokens_per_sample = 5
    assert models.build_model(stored, task).max_positions() == 12


def test_flags_of_an_encoder_are_refused(text, capsys):
    for flag in ("--norm-type-encoder", "--norm-type-encoder-ffn", "--norm-type-decoder-cross"):
        with pytest.raises(ValueError, match=f"{flag} rmsnorm: this model has no such site"):
            configure(*command(text, flag, "rmsnorm"))
    with pytest.raises(ValueError, match="--norm-placement-encoder is given, but .* no encoder"):
        configure(*command(text, "--norm-placement-encoder", "pre"))
    with pytest.raises(SystemExit):
        configure(*command(text, "--encoder-layers", "2"))
    assert "unrecognized arguments: --encoder-layers" in capsys.readouterr().err


def test_every_setting_of_fairseqs_has_its_default(text):
    model, _ = build(text, "norm_transformer_lm_gpt", character_embeddings=True)
    assert model.cfg.character_filters.startswith("[(1, 64)")


def test_fixnorm_of_embeddings_of_characters_is_refused(text):
    with pytest.raises(
        ValueError, match="character_embeddings is True, but --norm-embedding fixnorm needs"
    ):
        build(text, norm_embedding="fixnorm", character_embeddings=True)


def test_fairseqs_own_extra_norms_are_refused(text):
    with pytest.raises(ValueError, match="--scale-fc .* adds norms .* --norm-placement normformer"):
        build(text, scale_fc=True)
    with pytest.raises(ValueError, match="--base-layers .* adds layers with norms"):
        build(text, base_layers=1)


# ---- numpy 2 ------------------------------------------------------------------------------------


def test_one_sentence_a_block():
    """--sample-break-mode eos needs it; fairseq uses a name that numpy 2 does not have."""
    had = "compat" in vars(np)
    lines = [torch.arange(4, 4 + length) for length in (3, 1, 5)]
    blocks = TokenBlockDataset(lines, [3, 1, 5], None, pad=1, eos=2, break_mode="eos")
    assert [blocks[i].tolist() for i in range(3)] == [line.tolist() for line in lines]
    assert ("compat" in vars(np)) == had
