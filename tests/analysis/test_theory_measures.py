"""What the claims are measured with, each on a case whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from norm_plugin.analysis.theory import (
    concentration,
    every_layer,
    gradients,
    hidden_states,
    last_layer,
)
from norm_plugin.analysis.theory.batches import random_batches
from norm_plugin.analysis.theory.claim import Options, with_interval
from norm_plugin.analysis.theory.concentration import share_outside
from norm_plugin.analysis.theory.fits import contains, exponent, factor_below, rate
from norm_plugin.analysis.theory.jacobian import spectral_norm
from norm_plugin.analysis.theory.models import full, simplified
from norm_plugin.analysis.theory.stack_pass import stack_pass
from norm_plugin.models.initialization import XAVIER, initialize, of_placement
from norm_plugin.models.linear_maps import attention_projections, linear_maps
from norm_plugin.norms import build_norm
from norm_plugin.placements import PLACEMENTS

BATCHES = random_batches()
DIM = 16
ROUNDING = 1e-12  # float64 sums of a few hundred numbers


def rows_over_layers(values, seeds, **columns):
    """A row for each seed and (layer, gradient)."""
    return [
        {"seed": seed, "layer": layer, "gradient": value(layer), **columns}
        for seed, value in enumerate(seeds)
        for layer in values
    ]


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# fits


def test_an_exponent_is_that_of_the_power_and_has_an_interval_over_seeds():
    points = {seed: [(x, 3 * x**p) for x in (2, 4, 16)] for seed, p in enumerate((-0.4, -0.6))}
    found = exponent(points)
    assert found.mean == pytest.approx(-0.5)
    # Student's interval of two values: the quantile 12.706 times the standard error 0.1
    assert found.interval == pytest.approx((-0.5 - 1.2706, -0.5 + 1.2706), rel=1e-4)
    assert contains(found, 0.5)
    assert contains(found, 0.8) is False
    assert with_interval(found, 1) == "-0.5 (-1.8 to 0.8)"


def test_one_seed_has_no_interval_and_a_zero_no_exponent():
    found = exponent({0: [(1, 1.0), (2, 4.0)]})
    assert found.mean == pytest.approx(2)
    assert found.interval is None
    assert contains(found, 2) is None
    assert with_interval(found) == "2.000 (one seed)"
    assert exponent({0: [(1, 1.0), (2, 0.0)]}) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_fit(value):
    assert rate({0: [(1, 1.0), (2, value)]}) is None
    assert exponent({0: [(1, 1.0), (2, value)]}) is None
    assert exponent({0: [(1, 1.0), (value, 1.0)]}) is None


def test_draws_that_are_not_finite_have_no_share():
    assert share_outside(torch.tensor([1.0, 1.0, 3.0]), 0.5) == pytest.approx(1 / 3)
    assert math.isnan(share_outside(torch.tensor([1.0, math.nan]), 0.5))


def test_a_jacobian_that_is_not_finite_has_no_spectral_norm():
    assert math.isnan(spectral_norm(build_norm("layernorm", 4), torch.tensor([1, 2, 3, math.nan])))
    assert with_interval(None) == "undefined"


def test_the_factor_of_a_layer_is_that_of_the_decay():
    decays = (0.8, 0.9)
    found = factor_below(
        rate({seed: [(k, q ** (12 - k)) for k in range(1, 13)] for seed, q in enumerate(decays)})
    )
    assert found.mean == pytest.approx(math.sqrt(0.8 * 0.9))
    assert found.interval[0] < 0.8 < 0.9 < found.interval[1]


# models


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_simplified_setting_is_that_of_the_paper(placement):
    torch.manual_seed(0)
    stack = simplified(placement, "layernorm", 2, 64, BATCHES)
    for layer in stack.layers:
        queries, keys, values, _ = attention_projections(layer)
        assert not queries.weight.any()
        assert not keys.weight.any()
        assert values.weight.any()
        for linear in linear_maps(layer):
            assert linear.weight.shape == (64, 64)
            assert not linear.bias.any()
    assert stack.embed_positions is None
    tokens = BATCHES.draw(0).source
    # 128 x 64 normal numbers: their mean square is 1 within some 0.016
    assert stack.forward_embedding(tokens)[0].square().mean().item() == pytest.approx(1, abs=0.1)


def test_weights_are_xavier_normal_and_drawn_by_the_seed():
    def weights(seed):
        torch.manual_seed(seed)
        return simplified("pre", "layernorm", 1, 64, BATCHES).layers[0].fc1.weight

    assert weights(0).var().item() == pytest.approx(1 / 64, rel=0.1)  # 4096 draws: 2 % each
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("placement", [one for one in PLACEMENTS if of_placement(one) != XAVIER])
def test_a_placement_keeps_its_own_initialization(placement):
    def stack(seed):
        torch.manual_seed(seed)
        return simplified(placement, "layernorm", 1, 64, BATCHES)

    assert torch.equal(stack(0).layers[0].fc1.weight, stack(0).layers[0].fc1.weight)
    assert not torch.equal(stack(0).layers[0].fc1.weight, stack(1).layers[0].fc1.weight)
    layer = stack(0).layers[0]
    torch.manual_seed(0)
    nn.init.normal_(torch.empty(len(BATCHES.source_words), 64))  # the embeddings come first
    initialize(layer, of_placement(placement), layer.placement.place)
    torch.testing.assert_close(stack(0).layers[0].fc1.weight, layer.fc1.weight, rtol=0, atol=0)


def test_the_full_model_has_the_sizes_it_is_asked_for():
    model = full("post", "rmsnorm", 3, 32, BATCHES)
    assert [len(stack.layers) for stack in (model.encoder, model.decoder)] == [3, 3]
    assert model.decoder.layers[0].fc1.weight.shape == (128, 32)
    assert {choice.norm for choice in model.cfg.plan.sites} == {"rmsnorm"}


# gradients


def outer_products():
    """A linear map, its input and labels, and by hand the gradient of each position's loss."""
    torch.manual_seed(0)
    w2 = torch.nn.Linear(3, 5, bias=False).double()
    h, labels = normal(2, 4, 3), torch.tensor([[0, 1, 2, 3], [4, 1, 2, 9]])
    by_hand = []
    for position in range(7):  # the last label, 9, is padding
        loss = torch.nn.functional.cross_entropy(
            w2(h).flatten(0, 1)[position], labels.flatten()[position]
        )
        by_hand += torch.autograd.grad(loss, w2.weight)
    return w2, h, labels, torch.stack(by_hand)


def test_the_last_layers_gradient_is_that_of_each_position():
    w2, h, labels, by_hand = outer_products()
    found = gradients.last_layer_gradient(w2, lambda: w2(h), labels, pad=9)
    each = torch.linalg.matrix_norm(by_hand)
    assert found.of_positions == pytest.approx(each.mean().item(), rel=ROUNDING)
    together = torch.linalg.matrix_norm(by_hand.mean(dim=0))
    assert found.of_mean == pytest.approx(together.item(), rel=ROUNDING)
    assert not w2._forward_hooks


def test_every_layers_gradient_is_that_of_autograd():
    w2, h, labels, by_hand = outer_products()
    (found,) = gradients.layer_gradients([w2], gradients.total_loss(w2(h), labels, 9))
    assert found == pytest.approx(torch.linalg.matrix_norm(by_hand.sum(dim=0)).item(), rel=ROUNDING)


# a stack, layer by layer


def test_post_sums_and_pre_outputs_are_as_long_as_the_lemma_says():
    post = stack_pass("post", "layernorm", 2, 256, BATCHES, 0)
    assert post.outputs.shape == (3, BATCHES.draw(0).source.numel())
    assert post.outputs[1:].sub(1).abs().max() < 1e-3  # LayerNorm's eps, and float32
    assert set(post.sums) == {"self", "ffn"}
    assert post.sums["ffn"].mean().item() == pytest.approx(1.5, abs=0.1)
    pre = stack_pass("pre", "layernorm", 2, 256, BATCHES, 0)
    assert not pre.sums
    for layer in (1, 2):
        low, high = hidden_states.LEMMA["pre"].at(layer)
        assert low <= pre.outputs[layer].mean() <= high


def test_a_stack_without_branches_has_no_gradient_and_keeps_its_input():
    found = stack_pass("rezero", "layernorm", 2, DIM, BATCHES, 0)
    assert found.gradients == [0.0, 0.0]
    torch.testing.assert_close(found.outputs[2], found.outputs[0], rtol=0, atol=0)


# hidden states


def lengths(values_of_seeds, placement, place):
    return [
        {"tokens": "random", "placement": placement, "place": place, "layer": layer, "seed": seed}
        | {"squared_length": value}
        for seed, values in enumerate(values_of_seeds)
        for layer, value in enumerate(values, start=1)
    ]


def test_the_bounds_of_a_single_layer_are_checked():
    within = lengths([[1.6, 3.9], [1.7, 3.8]], "pre", hidden_states.OUTPUT)
    (sentence,) = hidden_states.find(within).sentences
    assert "within the bounds in each of the 2 layers" in sentence
    outside = lengths([[2.9, 3.9], [2.91, 3.8]], "pre", hidden_states.OUTPUT)
    (sentence,) = hidden_states.find(outside).sentences
    assert sentence.endswith("outside of the bounds in layers 1.")


@pytest.mark.parametrize(
    ("values", "word"), [((1.49, 1.51), "contains"), ((1.6, 1.61), "does not")]
)
def test_the_equality_of_post_is_checked(values, word):
    rows = lengths([[value, value] for value in values], "post", "ffn")
    (sentence,) = hidden_states.find(rows).sentences
    assert f"interval {word}" in sentence
    assert "where the lemma has 1.5;" in sentence


# the last layer


def depths(power, placement="pre", model="simplified"):
    return [
        {"model": model, "tokens": "random", "placement": placement, "layers": layers}
        | {"seed": seed, "of_positions": layers**one, "of_mean": 2.0 * layers**one}
        | {"squared_length": float(layers)}
        for seed, one in enumerate((power - 0.001, power + 0.001))
        for layers in (2, 8, 32)
    ]


@pytest.mark.parametrize(
    ("power", "words"),
    [
        (-0.5, (", within 0.1", "interval contains")),
        (-0.45, (", within 0.1", "interval does not contain")),
        (-0.2, (", not within 0.1", "interval does not contain")),
    ],
)
def test_the_exponent_is_compared_with_the_theorems(power, words):
    (sentence,) = last_layer.find(depths(power)).sentences
    assert [sentence.count(word) for word in words] == [2, 2]  # for both norms of the gradient
    assert f"in |x_L|^2 the gradient has an exponent of {power:.3f}" in sentence


def test_depths_that_are_close_have_an_exponent_and_lengths_that_are_close_have_none():
    rows = [{**row, "layers": one} for row in depths(-0.5) for one in (4, 5) if row["layers"] == 8]
    rows = [{**row, "of_positions": row["layers"] ** -0.5, "squared_length": 1.0} for row in rows]
    assert last_layer.exponents(rows, "of_positions").mean == pytest.approx(-0.5)
    assert last_layer.exponents(rows, "of_positions", over="squared_length") is None


def test_an_undefined_norm_of_the_gradient_gives_way_to_the_other():
    rows = [{**row, "of_positions": None} for row in depths(-0.5)]
    assert "-0.500" in last_layer.find(rows).sentences[0]


# every layer


def test_the_factor_is_compared_with_the_papers():
    columns = {"stack": "decoder", "tokens": "random", "placement": "post", "cross_sum": 1.5}
    columns["squared_length"] = None
    decays = [lambda layer, q=q: q ** (6 - layer) for q in (0.81, 0.822)]
    rows = rows_over_layers(range(1, 7), decays, **columns)
    (sentence,) = every_layer.find(rows).sentences
    assert "multiplied by 0.816" in sentence
    assert "is within 0.05 of it, and the interval contains it" in sentence
    assert "|x|^2 = 1.50 d, which alone would be a factor of 0.816 a layer" in sentence


def test_a_gradient_that_falls_with_the_length_of_the_stream_is_seen():
    columns = {"stack": "simplified", "tokens": "random", "placement": "pre", "cross_sum": None}
    rows = rows_over_layers(range(1, 7), [lambda layer: layer**-0.5] * 2, **columns)
    rows = [{**row, "squared_length": 2.0 * row["layer"]} for row in rows]
    (sentence,) = every_layer.find(rows).sentences
    assert "In |x_l|^2 the gradient has an exponent of -0.500" in sentence


# concentration


def test_the_share_outside_is_counted():
    draws = torch.tensor([0.5, 1.0, 1.0, 1.5])
    assert concentration.share_outside(draws, 0.4) == 0.5
    assert concentration.share_outside(draws, 0.6) == 0


def test_a_chi_square_stays_within_the_bound_and_a_wide_one_does_not():
    found = concentration.rows_of("none", "x", concentration.chi_square(64), 64)
    # exp(-64 0.5^2 / 8) = 0.14 is the smallest bound, and 20,000 draws test it
    assert "within the bound at each of 10 eps." in concentration.find(found).sentences[0]
    few = concentration.rows_of("none", "x", torch.ones(100), 512)
    # exp(-512 0.3^2 / 8) is 0.003: the bounds of 0.3 to 0.5 are below 1 / 100
    assert "at 5 of them the bound is below 1 / 100" in concentration.find(few).sentences[0]
    wide = torch.cat([torch.zeros(50), torch.full((50,), 2.0)])
    found = concentration.rows_of("none", "x", wide, 64)
    assert "exceeds the bound at eps" in concentration.find(found).sentences[0]


def test_other_placements_have_half_of_the_seeds_and_no_corpus():
    options = Options(("a", "b"), main=("b",), random=BATCHES, real=random_batches(), seeds=5)
    assert [len(options.seeds_of(one)) for one in "ab"] == [3, 5]
    assert [len(options.batches_of(one)) for one in "ab"] == [1, 2]
