"""What the claims are measured with, each on a case whose answer is known, and their verdicts."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from torch import nn

from norm_lab.theory import (
    adaptive_scale,
    bounded_gradient,
    concentration,
    detached,
    every_layer,
    hidden_states,
    jacobian,
    last_layer,
    lipschitz,
    models,
)
from norm_lab.theory.claim import Options, contains, exponent, factor_below, rate, with_interval
from norm_lab.theory.models import Batches, random_batches
from norm_plugin.models.initialization import (
    XAVIER,
    attention_projections,
    initialize,
    linear_maps,
    of_placement,
)
from norm_plugin.norms import build_norm
from norm_plugin.placements import PLACEMENTS

BATCHES = random_batches()
DIM = 16
ROUNDING = 1e-12  # float64 sums of a few hundred numbers


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def verdicts(claim, rows):
    """The rows of verdicts on these measurements."""
    return list(claim.verdicts(pd.DataFrame(rows)))


def holds(claim, row):
    """What the verdicts on one measurement say."""
    return [verdict["holds"] for verdict in verdicts(claim, [row])]


# fits


def points(by_seed):
    """A frame of the (x, y) of each seed."""
    return pd.DataFrame(
        [{"seed": seed, "x": x, "y": y} for seed, some in enumerate(by_seed) for x, y in some]
    )


def test_an_exponent_is_that_of_the_power_and_has_an_interval_over_seeds():
    sample = exponent(points([[(x, 3 * x**p) for x in (2, 4, 16)] for p in (-0.4, -0.6)]), "y", "x")
    assert sample.mean == pytest.approx(-0.5)
    # Student's interval of two values: the quantile 12.706 times the standard error 0.1
    assert sample.interval == pytest.approx((-0.5 - 1.2706, -0.5 + 1.2706), rel=1e-4)
    assert contains(sample, 0.5)
    assert contains(sample, 0.8) is False
    assert with_interval(sample, 1) == "-0.5 (-1.8 to 0.8)"
    one_seed = exponent(points([[(1, 1.0), (2, 4.0)]]), "y", "x")
    assert contains(one_seed, 2) is None and with_interval(one_seed) == "2.000 (one seed)"


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_what_is_not_a_number_above_0_has_no_fit(value):
    assert rate(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (2, value)]]), "y", "x") is None
    assert exponent(points([[(1, 1.0), (value, 1.0)]]), "y", "x") is None
    assert with_interval(None) == "undefined"


def test_the_factor_of_a_layer_is_that_of_the_decay():
    layers = range(1, 13)
    decays = [[(layer, q ** (12 - layer)) for layer in layers] for q in (0.8, 0.9)]
    sample = factor_below(rate(points(decays), "y", "x"))
    assert sample.mean == pytest.approx(math.sqrt(0.8 * 0.9))
    assert sample.interval[0] < 0.8 < 0.9 < sample.interval[1]


# models


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_simplified_setting_is_that_of_the_paper(placement):
    stack = models.simplified(placement, "layernorm", 2, 64, BATCHES, seed=0).model
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
        return models.simplified("pre", "layernorm", 1, 64, BATCHES, seed).layers[0].fc1.weight

    assert weights(0).var().item() == pytest.approx(1 / 64, rel=0.1)  # 4096 draws: 2 % each
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if of_placement(name) != XAVIER])
def test_a_placement_keeps_its_own_initialization(placement):
    layer = models.simplified(placement, "layernorm", 1, 64, BATCHES, 0).layers[0]
    drawn = layer.fc1.weight.detach().clone()
    torch.manual_seed(0)
    nn.init.normal_(torch.empty(len(BATCHES.source_words), 64))  # the embeddings come first
    initialize(layer, of_placement(placement), layer.placement.place)
    torch.testing.assert_close(drawn, layer.fc1.weight.detach(), rtol=0, atol=0)


def test_other_placements_have_half_of_the_seeds_and_no_corpus():
    options = Options(("a", "b"), main=("b",), random=BATCHES, real=random_batches(), seeds=5)
    assert [len(options.seeds_of(name)) for name in "ab"] == [3, 5]
    assert [len(options.batches_of(name)) for name in "ab"] == [1, 2]
    assert len(list(options.draws("b"))) == 10


def test_the_full_model_has_the_size_and_the_tied_embeddings_that_it_declares():
    setting = models.full("pre", "layernorm", 2, 128, BATCHES, seed=0)
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
    model = models.full("pre", "layernorm", 1, 8, padded, seed=0).model
    activations = models.encoder_activations(model, padded, 0)
    assert {at.x.shape for at in activations} == {at.g.shape for at in activations}
    assert {len(at.x) for at in activations} == {source.ne(pad).sum().item()}


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


@pytest.fixture
def setting():
    """A model of one such layer, whose x has 4 of its channels; the last label, 9, is padding."""
    layer = Layer()
    return models.Setting(layer, [layer], 4, lambda: (layer(H), []), LABELS, 9, LABELS.ne(9))


def gradients_by_hand(setting):
    """The gradient of each position's loss."""
    logits, labels = setting.run()[0].flatten(0, 1), LABELS.flatten()
    losses = [nn.functional.cross_entropy(logits[i], labels[i]) for i in range(7)]
    weight = setting.model.fc2.weight
    return torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])


def test_the_last_layers_gradient_is_that_of_each_position(setting):
    by_hand = gradients_by_hand(setting)
    measured = last_layer.last_layer(setting)
    each, together = torch.linalg.matrix_norm(by_hand), torch.linalg.matrix_norm(by_hand.mean(0))
    assert measured.of_positions == pytest.approx(each.mean().item(), rel=ROUNDING)
    assert measured.of_mean == pytest.approx(together.item(), rel=ROUNDING)
    # of the first 4 channels, at the 7 real positions
    x = setting.model(H)[..., :4].flatten(0, 1)[:7]
    assert measured.squared_length == pytest.approx(x.square().mean().item(), rel=ROUNDING)


def test_every_layers_gradient_is_that_of_autograd(setting):
    mean = torch.linalg.matrix_norm(gradients_by_hand(setting).mean(dim=0)).item()
    (measured,) = models.layer_gradients(setting.layers, setting.mean_loss())
    assert measured == pytest.approx(mean, rel=ROUNDING)


# a stack, layer by layer


def test_post_sums_and_pre_outputs_are_as_long_as_the_lemma_says():
    post = models.stack_pass("post", "layernorm", 2, 256, BATCHES, 0)
    assert post.outputs.shape == (3, BATCHES.draw(0).source.numel())
    assert post.outputs[1:].sub(1).abs().max() < 1e-3  # LayerNorm's eps, and float32
    assert set(post.sums) == {"self", "ffn"}
    assert post.sums["ffn"].mean().item() == pytest.approx(1.5, abs=0.1)
    pre = models.stack_pass("pre", "layernorm", 2, 256, BATCHES, 0)
    assert not pre.sums
    for layer in (1, 2):
        low, high = hidden_states.LEMMA["pre"].at(layer)
        assert low <= pre.outputs[layer].mean() <= high


def test_a_stack_without_branches_has_no_gradient_and_keeps_its_input():
    rezero = models.stack_pass("rezero", "layernorm", 2, DIM, BATCHES, 0)
    assert rezero.gradients == [0.0, 0.0]
    torch.testing.assert_close(rezero.outputs[2], rezero.outputs[0], rtol=0, atol=0)


# hidden states


def lengths(values_of_seeds, placement, place):
    return [
        {"tokens": "random", "placement": placement, "place": place, "layer": layer, "seed": seed}
        | {"squared_length": value}
        for seed, values in enumerate(values_of_seeds)
        for layer, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (2.9, [("1", "yes"), ("3", "yes"), ("1 to 3", "yes")]),
        (5.0, [("1", "yes"), ("2", "no"), ("3", "yes"), ("1 to 3", "no")]),  # above
        (1.0, [("1", "yes"), ("2", "no"), ("3", "yes"), ("1 to 3", "no")]),  # below
    ],
)
def test_the_bounds_of_a_single_layer_are_checked(length, expected):
    measured = [[1.6, length, 3.9], [1.7, length + 0.01, 3.8]]
    rows = verdicts(hidden_states, lengths(measured, "pre", hidden_states.OUTPUT))
    assert [(row["layer"], row["holds"]) for row in rows] == expected
    assert (rows[0]["stated"], rows[0]["measured"]) == ("1.50 to 2.50", "1.65")


@pytest.mark.parametrize(("values", "met"), [((1.49, 1.51), "yes"), ((1.6, 1.61), "no")])
def test_the_equality_of_post_is_checked(values, met):
    rows = verdicts(hidden_states, lengths([[value, value] for value in values], "post", "ffn"))
    assert [(row["stated"], row["holds"]) for row in rows] == [("1.5", met), ("1.5", "-")]
    mean = f"{sum(values) / 2:.3f}"
    assert [row["measured"] for row in rows] == [mean, f"{mean} to {mean}"]


# the last layer


def depths(power):
    return [
        {"model": "simplified", "tokens": "random", "placement": "pre", "layers": layers}
        | {"seed": seed, "of_positions": layers**p, "of_mean": 2.0 * layers**p}
        | {"squared_length": float(layers)}
        for seed, p in enumerate((power - 0.001, power + 0.001))
        for layers in (2, 8, 32)
    ]


@pytest.mark.parametrize(
    ("power", "contained", "near"),
    [(-0.5, "yes", "yes"), (-0.45, "no", "yes"), (-0.2, "no", "no")],
)
def test_the_exponent_is_compared_with_the_theorems(power, contained, near):
    for row in verdicts(last_layer, depths(power)):  # of both norms of the gradient
        assert (row["stated"], row["measured"]) == ("-0.5 ± 0.1", f"{power:.3f}")
        assert (row["contains it"], row["holds"]) == (contained, near)
    (table,) = last_layer.tables(pd.DataFrame(depths(power)))
    assert table["exponent in |x_L|^2"][0].startswith(f"{power:.3f} (")


def test_lengths_that_are_close_have_no_exponent():
    frame = pd.DataFrame(depths(-0.5)).assign(squared_length=1.0)
    assert last_layer.exponent_of(frame, "of_positions").mean == pytest.approx(-0.5)
    assert last_layer.exponent_of(frame, "of_positions", over="squared_length") is None


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
    columns = {"stack": "simplified", "placement": "pre", "cross_sum": math.nan}
    rows = over_layers([lambda layer: layer**-0.5] * 2, **columns)
    (row,) = verdicts(every_layer, [{**row, "squared_length": 2.0 * row["layer"]} for row in rows])
    assert row["exponent in |x_l|^2"] == "-0.500 (-0.500 to -0.500)"


# concentration


def test_the_share_outside_is_counted():
    draws = torch.tensor([0.5, 1.0, 1.0, 1.5])
    assert concentration.share_outside(draws, 0.4) == 0.5
    assert concentration.share_outside(draws, 0.6) == 0
    assert math.isnan(concentration.share_outside(torch.tensor([1.0, math.nan]), 0.5))


def test_a_chi_square_stays_within_the_bound_and_a_wide_one_does_not():
    def row_of(draws, n):
        shares = concentration.shares_of(draws, n, tokens="none", x="x")
        limit, row = verdicts(concentration, shares)
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


@pytest.mark.parametrize(("far", "holds"), [(12, "yes"), (14, "no")])
def test_the_share_that_the_paper_found_is_tested_where_its_lemma_is(far, holds):
    draws = torch.tensor([0.5] * (far // 2) + [1.0] * (100 - far) + [1.5] * (far // 2))
    shares = concentration.shares_of(draws, 512, tokens="random", x="pre")
    *_, row = verdicts(concentration, shares)
    assert (row["measured"], row["holds"]) == (f"0.{far}00", holds)


# the Jacobian


def test_the_jacobian_of_layernorm_is_that_of_the_formula():
    x, d = normal(DIM) + 3, DIM
    norm = build_norm("layernorm", d, eps=0.0).double()
    sigma = x.std(correction=0)
    y = (x - x.mean()) / sigma
    by_hand = (torch.eye(d, dtype=torch.float64) - 1 / d - torch.outer(y, y) / d) / sigma
    torch.testing.assert_close(jacobian.jacobian(norm, x), by_hand, rtol=0, atol=ROUNDING)
    assert jacobian.spectral_norm(norm, x) == pytest.approx(1 / sigma.item(), rel=ROUNDING)
    assert math.isnan(jacobian.spectral_norm(norm, x / 0))


@pytest.mark.parametrize(("norm", "bounded"), [("layernorm", "no"), ("rmsnorm", "yes")])
def test_the_mean_of_the_input_counts_for_layernorm_alone(norm, bounded):
    rows = jacobian.measure_once(Options((), (), random=BATCHES, norm_type=norm, full_dim=DIM))
    *_, last = verdicts(jacobian, rows)
    assert (last["norm"], last["x"]) == (norm, "normal, means 0, 1, 3, 10")
    assert last["holds"] == bounded


# AdaNorm's theorem


@pytest.mark.parametrize("name", detached.FORMS)
def test_the_stated_equalities_and_inequalities_hold_in_float64(name):
    x, g = 3 * normal(5, DIM) + 1, normal(5, DIM, seed=1) + 0.5
    error, ratio = detached.margins(name, x, g)
    assert error.max() < ROUNDING
    if detached.FORMS[name].keeps_variance:
        torch.testing.assert_close(ratio, torch.ones(5).double(), rtol=0, atol=1e-11)
    else:
        assert ratio.max() < 1


def test_a_gradient_along_y_loses_all_of_its_variance():
    x = normal(4, DIM)
    y = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, correction=0, keepdim=True)
    # what stays is due to eps = 1e-5 beside a variance of about 1
    assert detached.margins("layernorm-simple", x, y)[1].max() < 1e-4


def test_the_linear_scale_has_the_stated_means():
    x = 3 * normal(5, DIM) + 1
    y = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, correction=0, keepdim=True)
    torch.testing.assert_close(adaptive_scale.standardized(x), y, rtol=0, atol=ROUNDING)
    by_hand = 2 * (1 - 0.1 * y) * y
    torch.testing.assert_close(adaptive_scale.z_of(x), by_hand, rtol=0, atol=ROUNDING)
    assert (by_hand.mean(dim=-1) + 0.2).abs().max() < ROUNDING  # -C k
    for phi in adaptive_scale.PHI.values():
        assert (phi(y).mean(dim=-1) - 2).abs().max() < ROUNDING


# PowerNorm


def test_the_identity_of_the_exact_gradient_holds():
    x, g = normal(40, 6) + 0.3, normal(40, 6, seed=1)
    exact = lipschitz.exact_gradient(x, g)
    torch.testing.assert_close(exact.share, exact.by_identity, rtol=0, atol=ROUNDING)
    assert exact.share.max() <= 1
    assert lipschitz.exact_gradient(x, x).share.max() < ROUNDING


def test_the_ratio_to_batch_norm_is_that_of_both_closed_forms():
    x, g = normal(40, 6) + 0.3, normal(40, 6, seed=1)
    mean, centered = g.mean(dim=0), x - x.mean(dim=0)
    sigma2, psi2 = centered.square().mean(dim=0), x.square().mean(dim=0)
    of_powernorm = g.square().mean(dim=0) - (g * x).mean(dim=0).square() / psi2
    of_batchnorm = (
        g.square().mean(dim=0) - mean.square() - (g * centered).mean(dim=0).square() / sigma2
    )
    by_hand = (of_powernorm / psi2 / (of_batchnorm / sigma2)).sqrt()
    ratio = lipschitz.exact_gradient(x, g).ratio
    torch.testing.assert_close(ratio, by_hand, rtol=0, atol=ROUNDING)
    # without a mean of x both divide by the same, and with a large one PN-V divides by more
    assert lipschitz.exact_gradient(centered, g).ratio.min() > 1
    assert lipschitz.exact_gradient(x + 5, g).ratio.max() < 1


def test_the_running_norm_subtracts_nothing_from_its_first_gradient():
    x, g = normal(40, 6), normal(40, 6, seed=1)
    batches = [models.Activations("encoder", x, g)]
    (first,) = lipschitz.running_gradients(batches, epochs=1)  # nu is 0 at the start
    torch.testing.assert_close(first.share, torch.ones(6).double(), rtol=0, atol=ROUNDING)
    (last,) = lipschitz.running_gradients(batches)
    assert (last.share - 1).abs().min() > ROUNDING  # nu is not 0 any more


def test_what_a_pass_of_pn_shows_is_what_the_formulas_give():
    x, g = normal(40, 6), normal(40, 6, seed=1)
    first, second = bounded_gradient.passes([models.Activations("encoder", x, g)], epochs=2)
    # psi = 1 and nu = 0: x_hat = x, up to eps = 1e-5
    psi2 = 1 + 1e-5
    gamma, lambda_ = x.square().mean(dim=0) / psi2, (g * x).mean(dim=0) / psi2**0.5
    assert first["step"] == pytest.approx(0.1 * gamma.max().item(), rel=ROUNDING)
    assert first["share"] == first["gradient"] == pytest.approx(1, rel=ROUNDING)
    nu, bound = 0.1 * lambda_, lambda_.abs() / gamma
    assert first["nu"] == pytest.approx((nu.abs() / bound).max().item(), rel=ROUNDING)
    psi = (0.9 + 0.1 * x.square().mean(dim=0) + 1e-5).sqrt()
    length = torch.linalg.vector_norm(g - nu * x / psi, dim=0)
    g_length, x_length = (torch.linalg.vector_norm(v, dim=0) for v in (g, x / psi))
    by_hand = length / (g_length + bound * x_length)
    assert second["gradient"] == pytest.approx(by_hand.max().item(), rel=ROUNDING)


def test_the_bound_of_nu_is_that_of_all_batches_so_far():
    x, g = normal(40, 6), normal(40, 6, seed=1)
    batches = [models.Activations("encoder", x, gradient) for gradient in (g, g / 1000)]
    *_, last = bounded_gradient.passes(batches, epochs=1)
    psi2 = torch.stack([torch.ones(6).double(), 0.9 + 0.1 * x.square().mean(dim=0)]) + 1e-5
    gamma = x.square().mean(dim=0) / psi2
    lambda_ = torch.stack([(g * x).mean(dim=0), (g * x).mean(dim=0) / 1000]) / psi2.sqrt()
    nu = 0.1 * lambda_[0] * (1 - 0.1 * gamma[1]) + 0.1 * lambda_[1]
    bound = (lambda_.abs() / gamma)[0]  # that of the second batch is a thousandth
    assert last["nu"] == pytest.approx((nu.abs() / bound).max().item(), rel=ROUNDING)


# when the statements on single norms are said to hold

MET = {
    detached: {
        **{"mean_error": 0.0, "variance_excess": 0.0, "variance_error": 0.0},
        **{"positions": 5, "variance_ratio": 1.0, "least_variance_ratio": 1.0},
    },
    adaptive_scale: {
        **{"phi": adaptive_scale.LINEAR, "positions": 5, "phi_error": 0.0},
        **{"z_least": -0.2, "z_largest": -0.2, "share_outside": 0.01},
    },
    bounded_gradient: {
        **{"tokens": "random", "placement": "pre", "share": 1.2},
        **{"step": 0.1, "nu": 1.0, "gradient": 1.0},
    },
    lipschitz: {
        **{"norm": "powernorm-v", "tokens": "random", "identity_error": 0.0},
        **{"mean_share": 0.9, "largest_share": 1.0, "channels_above": 0.0},
        **{"mean_ratio": 1.1, "channels_longer": 0.5},
    },
}


@pytest.mark.parametrize(
    ("claim", "changed", "expected"),
    [
        (detached, {"norm": "detachnorm"}, ["yes", "yes"]),
        (detached, {"norm": "detachnorm", "mean_error": 1e-8}, ["no", "yes"]),
        (detached, {"norm": "detachnorm", "variance_error": 1e-8}, ["yes", "no"]),
        (detached, {"norm": "layernorm-simple", "variance_error": 0.5}, ["yes", "yes"]),
        (detached, {"norm": "layernorm-simple", "variance_excess": 1e-8}, ["yes", "no"]),
        (adaptive_scale, {}, ["yes", "yes", "yes"]),
        (adaptive_scale, {"phi_error": 1e-8}, ["no", "yes", "yes"]),
        (adaptive_scale, {"z_largest": -0.19}, ["yes", "no", "yes"]),
        (adaptive_scale, {"z_least": -0.21}, ["yes", "no", "yes"]),
        (adaptive_scale, {"share_outside": 0.011}, ["yes", "yes", "no"]),
        (bounded_gradient, {}, ["yes", "yes", "yes", "-"]),
        (bounded_gradient, {"gradient": 1.01}, ["yes", "yes", "no", "-"]),
        (lipschitz, {}, ["yes", "yes"]),
        (lipschitz, {"identity_error": 1e-3}, ["no", "yes"]),
        (lipschitz, {"largest_share": 1.001}, ["yes", "no"]),
        (lipschitz, {"norm": "powernorm"}, ["-"]),  # nothing is stated of it
    ],
)
def test_a_statement_holds_where_it_is_met(claim, changed, expected):
    assert holds(claim, {**MET[claim], **changed}) == expected
