"""The models, batches and gradients that the claims are measured with."""

from __future__ import annotations

import pytest
import torch
from tiny_run import write_dictionaries
from torch import nn

from known_cases import BATCHES, DIM, PAIRS, ROUNDING, gradients_by_hand
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.initialization import (
    XAVIER,
    attention_projections,
    default_init,
    initialize,
    linear_maps,
)
from norm_plugin.placements import PLACEMENTS
from papers.theory import models
from papers.theory.models import REAL, SENTENCES, Batches, real_batches, stack_pass


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_simplified_setting_is_that_of_the_paper(placement):
    stack = models.simplified(placement, 2, 64, BATCHES, seed=0).model
    for layer in stack.layers:
        queries, keys, values, _ = attention_projections(layer)
        assert not queries.weight.any()
        assert not keys.weight.any()
        assert values.weight.any()
        for linear in linear_maps(layer):
            assert linear.weight.shape == (64, 64)
            assert not linear.bias.any()
    assert stack.embed_positions is None
    # 128 x 64 normal numbers: their mean square is 1 within some 0.016
    x, _ = stack.forward_embedding(BATCHES.draw(0).source)
    assert x.square().mean().item() == pytest.approx(1, abs=0.1)


def test_weights_are_xavier_normal_and_drawn_by_the_seed():
    def weights(seed):
        return models.simplified("pre", 1, 64, BATCHES, seed).layers[0].fc1.weight

    assert weights(0).var().item() == pytest.approx(1 / 64, rel=0.1)  # 4096 draws: 2 % each
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if default_init(name) != XAVIER])
def test_a_placement_keeps_its_own_initialization(placement):
    layer = models.simplified(placement, 1, 64, BATCHES, 0).layers[0]
    drawn = layer.fc1.weight.detach().clone()
    torch.manual_seed(0)
    nn.init.normal_(torch.empty(len(BATCHES.source_words), 64))  # the embeddings come first
    initialize(layer, default_init(placement), layer.placement.place)
    torch.testing.assert_close(drawn, layer.fc1.weight.detach(), rtol=0, atol=0)


def test_the_full_model_has_the_size_and_the_tied_embeddings_that_it_declares():
    setting = models.full("pre", 2, 128, BATCHES, seed=0)
    decoder = setting.model.decoder
    assert decoder.output_projection.weight is decoder.embed_tokens.weight
    for layers in (setting.model.encoder.layers, setting.layers):
        assert [layer.fc1.out_features for layer in layers] == [4 * 128] * 2
        assert {layer.self_attn.num_heads for layer in layers} == {128 // models.HEAD_CHANNELS}


def test_padding_is_not_among_the_activations():
    batch, pad = BATCHES.draw(0), BATCHES.source_words.pad()
    source = batch.source.clone()
    source[0, :5] = pad
    padded = Batches(BATCHES.source_words, BATCHES.target_words, (batch._replace(source=source),))
    model = models.full("pre", 1, 8, padded, seed=0).model
    activations = models.encoder_activations(model, padded, 0)
    assert {at.x.shape for at in activations} == {at.g.shape for at in activations}
    assert {len(at.x) for at in activations} == {source.ne(pad).sum().item()}


def test_every_layers_gradient_is_that_of_autograd(setting):
    mean = torch.linalg.matrix_norm(gradients_by_hand(setting).mean(dim=0)).item()
    (measured,) = models.layer_gradients(setting.layers, setting.mean_loss())
    assert measured == pytest.approx(mean, rel=ROUNDING)


def test_a_stack_without_branches_has_no_gradient_and_keeps_its_input():
    rezero = models.stack_pass("rezero", 2, DIM, BATCHES, 0)
    assert rezero.gradients == [0.0, 0.0]
    torch.testing.assert_close(rezero.outputs[2], rezero.outputs[0], rtol=0, atol=0)


def test_a_batch_of_a_corpus_is_its_next_sentences(corpus):
    batches = real_batches(corpus, seeds=3)
    dictionary, tokens = batches.source_words, []
    assert batches.kind == REAL
    for seed in range(3):
        source, previous, target = batches.draw(seed)
        assert len(source) == len(target) == SENTENCES
        assert previous.shape == target.shape
        assert (source[:, -1] == dictionary.eos()).all()  # padded on the left
        tokens.append(int(source.ne(dictionary.pad()).sum()))
    assert len(set(tokens)) > 1
    stack = stack_pass("pre", 1, 8, batches, 0)
    assert stack.outputs.shape == (2, tokens[0])  # padding is no position
    assert (stack.outputs > 0).all()


def test_a_corpus_that_is_too_small_or_missing_is_refused(corpus, tmp_path):
    with pytest.raises(CommandError, match=f"has {PAIRS} sentences for training, but --seeds 30"):
        real_batches(corpus, seeds=30)
    with pytest.raises(CommandError, match="no file such as train"):
        real_batches(write_dictionaries(tmp_path / "bin"), seeds=1)
    with pytest.raises(CommandError, match="No such file"):
        real_batches(tmp_path / "missing", seeds=1)
