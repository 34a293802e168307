"""What the claims are measured with, each on a case whose answer is known."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from torch import nn

from norm_plugin.analysis.theory import (
    concentration,
    every_layer,
    hidden_states,
    last_layer,
    stacks,
)
from norm_plugin.analysis.theory.claim import (
    Options,
    contains,
    exponent,
    factor_below,
    rate,
    with_interval,
)
from norm_plugin.analysis.theory.jacobian import spectral_norm
from norm_plugin.models.initialization import (
    XAVIER,
    attention_projections,
    initialize,
    linear_maps,
    of_placement,
)
from norm_plugin.norms import build_norm
from norm_plugin.placements import PLACEMENTS

BATCHES = stacks.random_batches()
DIM = 16
ROUNDING = 1e-12  # float64 sums of a few hundred numbers


def points(by_seed):
    """A frame of the (x, y) of each seed."""
    return pd.DataFrame(
        [{"seed": seed, "x": x, "y": y} for seed, some in enumerate(by_seed) for x, y in some]
    )


def verdicts(claim, rows):
    """The rows of verdicts on these measurements."""
    return list(claim.verdicts(pd.DataFrame(rows)))


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# fits


def test_an_exponent_is_that_of_the_power_and_has_an_interval_over_seeds():
    found = exponent(points([[(x, 3 * x**p) for x in (2, 4, 16)] for p in (-0.4, -0.6)]), "y", "x")
    assert found.mean == pytest.approx(-0.5)
    # Student's interval of two values: the quantile 12.706 times the standard error 0.1
    assert found.interval == pytest.approx((-0.5 - 1.2706, -0.5 + 1.2706), rel=1e-4)
    assert contains(found, 0.5)
    assert contains(found, 0.8) is False
    assert with_interval(found, 1) == "-0.5 (-1.8 to 0.8)"


def test_one_seed_has_no_interval_and_a_zero_no_exponent():
    found = exponent(points([[(1, 1.0), (2, 4.0)]]), "y", "x")
    assert found.mean == pytest.approx(2)
    assert found.interval is None
    assert contains(found, 2) is None
    assert with_interval(found) == "2.000 (one seed)"
    assert exponent(points([[(1, 1.0), (2, 0.0)]]), "y", "x") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_fit(value):
    assert rate(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (value, 1.0)]]), "y", "x") is None


def test_draws_that_are_not_finite_have_no_share():
    assert concentration.share_outside(torch.tensor([1.0, 1.0, 3.0]), 0.5) == pytest.approx(1 / 3)
    assert math.isnan(concentration.share_outside(torch.tensor([1.0, math.nan]), 0.5))


def test_a_jacobian_that_is_not_finite_has_no_spectral_norm():
    assert math.isnan(spectral_norm(build_norm("layernorm", 4), torch.tensor([1, 2, 3, math.nan])))
    assert with_interval(None) == "undefined"


def test_the_factor_of_a_layer_is_that_of_the_decay():
    layers = range(1, 13)
    found = factor_below(
        rate(points([[(k, q ** (12 - k)) for k in layers] for q in (0.8, 0.9)]), "y", "x")
    )
    assert found.mean == pytest.approx(math.sqrt(0.8 * 0.9))
    assert found.interval[0] < 0.8 < 0.9 < found.interval[1]


# models


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_simplified_setting_is_that_of_the_paper(placement):
    setting = stacks.simplified(placement, "layernorm", 2, 64, BATCHES, seed=0)
    stack = setting.stack
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
    assert stack.forward_embedding(setting.tokens)[0].square().mean().item() == pytest.approx(
        1, abs=0.1
    )


def test_weights_are_xavier_normal_and_drawn_by_the_seed():
    def weights(seed):
        setting = stacks.simplified("pre", "layernorm", 1, 64, BATCHES, seed)
        return setting.stack.layers[0].fc1.weight

    assert weights(0).var().item() == pytest.approx(1 / 64, rel=0.1)  # 4096 draws: 2 % each
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("placement", [one for one in PLACEMENTS if of_placement(one) != XAVIER])
def test_a_placement_keeps_its_own_initialization(placement):
    def first_layer(seed):
        return stacks.simplified(placement, "layernorm", 1, 64, BATCHES, seed).stack.layers[0]

    assert torch.equal(first_layer(0).fc1.weight, first_layer(0).fc1.weight)
    assert not torch.equal(first_layer(0).fc1.weight, first_layer(1).fc1.weight)
    layer = first_layer(0)
    torch.manual_seed(0)
    nn.init.normal_(torch.empty(len(BATCHES.source_words), 64))  # the embeddings come first
    initialize(layer, of_placement(placement), layer.placement.place)
    torch.testing.assert_close(first_layer(0).fc1.weight, layer.fc1.weight, rtol=0, atol=0)


def test_the_full_model_has_the_sizes_it_is_asked_for():
    model = stacks.full("post", "rmsnorm", 3, 32, BATCHES, seed=0)
    assert [len(stack.layers) for stack in (model.encoder, model.decoder)] == [3, 3]
    assert model.decoder.layers[0].fc1.weight.shape == (128, 32)
    assert {choice.norm for choice in model.cfg.plan.sites} == {"rmsnorm"}


# gradients


class Layer(nn.Module):
    """A layer that is only its second matrix, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc2 = nn.Linear(3, 5, bias=False).double()

    def forward(self, h):
        return self.fc2(h)


H, LABELS = normal(2, 4, 3), torch.tensor([[0, 1, 2, 3], [4, 1, 2, 9]])


def gradients_by_hand(layer):
    """Of each position's loss; the last label, 9, is padding."""
    return torch.stack(
        [
            torch.autograd.grad(
                nn.functional.cross_entropy(
                    layer(H).flatten(0, 1)[position], LABELS.flatten()[position]
                ),
                layer.fc2.weight,
            )[0]
            for position in range(7)
        ]
    )


def test_the_last_layers_gradient_is_that_of_each_position():
    layer = Layer()
    by_hand = gradients_by_hand(layer)
    view = last_layer.LastLayerView(layer, LABELS.ne(9), dim=4)
    found = view.measure(lambda: layer(H), LABELS, pad=9)
    each = torch.linalg.matrix_norm(by_hand)
    assert found.of_positions == pytest.approx(each.mean().item(), rel=ROUNDING)
    together = torch.linalg.matrix_norm(by_hand.mean(dim=0))
    assert found.of_mean == pytest.approx(together.item(), rel=ROUNDING)
    # of the first 4 channels, at the 7 real positions
    x = layer(H)[..., :4].flatten(0, 1)[:7]
    assert found.squared_length == pytest.approx(x.square().mean().item(), rel=ROUNDING)


def test_every_layers_gradient_is_that_of_autograd():
    layer = Layer()
    (found,) = stacks.layer_gradients([layer], stacks.total_loss(layer(H), LABELS, 9))
    summed = gradients_by_hand(layer).sum(dim=0)
    assert found == pytest.approx(torch.linalg.matrix_norm(summed).item(), rel=ROUNDING)


# a stack, layer by layer


def test_post_sums_and_pre_outputs_are_as_long_as_the_lemma_says():
    post = stacks.stack_pass("post", "layernorm", 2, 256, BATCHES, 0)
    assert post.outputs.shape == (3, BATCHES.draw(0).source.numel())
    assert post.outputs[1:].sub(1).abs().max() < 1e-3  # LayerNorm's eps, and float32
    assert set(post.sums) == {"self", "ffn"}
    assert post.sums["ffn"].mean().item() == pytest.approx(1.5, abs=0.1)
    pre = stacks.stack_pass("pre", "layernorm", 2, 256, BATCHES, 0)
    assert not pre.sums
    for layer in (1, 2):
        low, high = hidden_states.LEMMA["pre"].at(layer)
        assert low <= pre.outputs[layer].mean() <= high


def test_a_stack_without_branches_has_no_gradient_and_keeps_its_input():
    found = stacks.stack_pass("rezero", "layernorm", 2, DIM, BATCHES, 0)
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
    within = lengths([[1.6, 2.9, 3.9], [1.7, 2.91, 3.8]], "pre", hidden_states.OUTPUT)
    rows = verdicts(hidden_states, within)
    assert [(row["layer"], row["measured"], row["holds"]) for row in rows] == [
        ("1", "1.65", "yes"),
        ("3", "3.85", "yes"),
        ("1 to 3", "3 within the bounds", "yes"),
    ]
    assert rows[0]["stated"] == "1.50 to 2.50"
    for value in (5.0, 1.0):  # above and below what layer 2 may have
        outside = lengths(
            [[1.6, value, 3.9], [1.7, value + 0.01, 3.8]], "pre", hidden_states.OUTPUT
        )
        rows = verdicts(hidden_states, outside)
        assert [(row["layer"], row["holds"]) for row in rows] == [
            ("1", "yes"),
            ("2", "no"),
            ("3", "yes"),
            ("1 to 3", "no"),
        ]


@pytest.mark.parametrize(("values", "holds"), [((1.49, 1.51), "yes"), ((1.6, 1.61), "no")])
def test_the_equality_of_post_is_checked(values, holds):
    rows = verdicts(hidden_states, lengths([[value, value] for value in values], "post", "ffn"))
    assert [(row["stated"], row["holds"]) for row in rows] == [("1.5", holds), ("1.5", "-")]
    mean = f"{sum(values) / 2:.3f}"
    assert [row["measured"] for row in rows] == [mean, f"{mean} to {mean}"]


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
    ("power", "contained", "holds"),
    [(-0.5, "yes", "yes"), (-0.45, "no", "yes"), (-0.2, "no", "no")],
)
def test_the_exponent_is_compared_with_the_theorems(power, contained, holds):
    for row in verdicts(last_layer, depths(power)):  # of both norms of the gradient
        assert (row["stated"], row["measured"]) == ("-0.5 ± 0.1", f"{power:.3f}")
        assert (row["contains it"], row["holds"]) == (contained, holds)
    (table,) = last_layer.tables(pd.DataFrame(depths(power)))
    assert table["exponent in |x_L|^2"][0].startswith(f"{power:.3f} (")


def test_depths_that_are_close_have_an_exponent_and_lengths_that_are_close_have_none():
    frame = pd.DataFrame(depths(-0.5)).query("layers < 32").replace({"layers": {2: 4, 8: 5}})
    frame = frame.assign(of_positions=frame["layers"] ** -0.5, squared_length=1.0)
    assert last_layer.exponent_of(frame, "of_positions").mean == pytest.approx(-0.5)
    assert last_layer.exponent_of(frame, "of_positions", over="squared_length") is None


def test_an_undefined_norm_of_the_gradient_has_no_verdict():
    first, second = verdicts(last_layer, [{**row, "of_positions": None} for row in depths(-0.5)])
    assert (first["measured"], first["holds"]) == ("undefined", "-")
    assert (second["measured"], second["holds"]) == ("-0.500", "yes")


# every layer


def over_layers(values_of_seeds, **columns):
    """A row for each of six layers and seed."""
    return [
        {"tokens": "random", "seed": seed, "layer": layer, "gradient": value(layer), **columns}
        for seed, value in enumerate(values_of_seeds)
        for layer in range(1, 7)
    ]


def test_the_factor_is_compared_with_the_papers():
    columns = {"stack": "decoder", "placement": "post", "cross_sum": 1.5, "squared_length": None}
    decays = [lambda layer, q=q: q ** (6 - layer) for q in (0.81, 0.822)]
    (row,) = verdicts(every_layer, over_layers(decays, **columns))
    assert (row["stated"], row["measured"]) == ("0.816 ± 0.05", "0.816")
    assert (row["contains it"], row["holds"]) == ("yes", "yes")
    assert (row["a"], row["a^(-1/2)"]) == ("1.50", "0.816")
    (row,) = verdicts(every_layer, over_layers([lambda layer: 1.0] * 2, **columns))
    assert (row["measured"], row["holds"]) == ("1.000", "no")


def test_a_gradient_that_falls_with_the_length_of_the_stream_is_seen():
    columns = {"stack": "simplified", "placement": "pre", "cross_sum": None}
    rows = over_layers([lambda layer: layer**-0.5] * 2, **columns)
    (row,) = verdicts(every_layer, [{**row, "squared_length": 2.0 * row["layer"]} for row in rows])
    assert row["exponent in |x_l|^2"] == "-0.500 (-0.500 to -0.500)"


# concentration


def test_the_share_outside_is_counted():
    draws = torch.tensor([0.5, 1.0, 1.0, 1.5])
    assert concentration.share_outside(draws, 0.4) == 0.5
    assert concentration.share_outside(draws, 0.6) == 0


def test_a_chi_square_stays_within_the_bound_and_a_wide_one_does_not():
    def row_of(draws, n):
        limit, row = verdicts(concentration, concentration.rows_of("none", "x", draws, n))
        assert limit["eps = 0.3"] == f"{math.exp(-n * 0.3**2 / 8):.4f}"
        return row

    # exp(-64 0.5^2 / 8) = 0.14 is the smallest bound, and 20,000 draws test it
    row = row_of(concentration.chi_square(64), 64)
    assert (row["holds"], row["bound < 1 / draws"]) == ("yes", "0")
    # exp(-512 0.3^2 / 8) is 0.003: the bounds of 0.3 to 0.5 are below 1 / 100
    assert row_of(torch.ones(100), 512)["bound < 1 / draws"] == "5"
    row = row_of(torch.cat([torch.zeros(50), torch.full((50,), 2.0)]), 64)
    assert (row["holds"], row["measured"]) == ("no", "within at 0 eps")
    assert row["excess"] == f"{1 - math.exp(-2):.3f} at 0.5"


def test_other_placements_have_half_of_the_seeds_and_no_corpus():
    options = Options(
        ("a", "b"), main=("b",), random=BATCHES, real=stacks.random_batches(), seeds=5
    )
    assert [len(options.seeds_of(one)) for one in "ab"] == [3, 5]
    assert [len(options.batches_of(one)) for one in "ab"] == [1, 2]
