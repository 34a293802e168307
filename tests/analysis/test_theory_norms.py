"""The claims about single norms: what they are measured with, and when they are said to hold."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from norm_plugin.analysis.theory import (
    adaptive_scale,
    bounded_gradient,
    detached,
    jacobian,
    lipschitz,
)
from norm_plugin.analysis.theory.claim import Options
from norm_plugin.analysis.theory.stacks import (
    Activations,
    Batches,
    encoder_activations,
    full,
    random_batches,
)
from norm_plugin.norms import build_norm

BATCHES = random_batches()
DIM = 16
ROUNDING = 1e-12  # float64 sums of a few hundred numbers


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# the Jacobian


def test_the_jacobian_of_layernorm_is_that_of_the_formula():
    x, d = normal(DIM) + 3, DIM
    norm = build_norm("layernorm", d, eps=0.0).double()
    sigma = x.std(correction=0)
    y = (x - x.mean()) / sigma
    by_hand = (torch.eye(d, dtype=torch.float64) - 1 / d - torch.outer(y, y) / d) / sigma
    torch.testing.assert_close(jacobian.jacobian(norm, x), by_hand, rtol=0, atol=ROUNDING)
    assert jacobian.spectral_norm(norm, x) == pytest.approx(1 / sigma.item(), rel=ROUNDING)


@pytest.mark.parametrize(("norm", "holds"), [("layernorm", "no"), ("rmsnorm", "yes")])
def test_the_mean_of_the_input_counts_for_layernorm_alone(norm, holds):
    rows = jacobian.measure_once(Options((), (), random=BATCHES, norm_type=norm, full_dim=DIM))
    *_, last = jacobian.verdicts(pd.DataFrame(rows))
    assert (last["norm"], last["x"]) == (norm, "normal, means 0, 1, 3, 10")
    assert last["holds"] == holds


# AdaNorm's theorem


@pytest.mark.parametrize("name", detached.FORMS)
def test_the_stated_equalities_and_inequalities_hold_in_float64(name):
    x, g = 3 * normal(5, DIM) + 1, normal(5, DIM, seed=1) + 0.5
    found = detached.margins(name, x, g)
    assert found.mean_error.max() < ROUNDING
    if detached.FORMS[name].keeps_variance:
        torch.testing.assert_close(found.variance_ratio, torch.ones(5).double(), rtol=0, atol=1e-11)
    else:
        assert found.variance_ratio.max() < 1


@pytest.mark.parametrize(
    ("norm", "changed", "holds"),
    [
        ("detachnorm", {}, ["yes", "yes"]),
        ("detachnorm", {"mean_error": 1e-8}, ["no", "yes"]),
        ("detachnorm", {"variance_error": 1e-8}, ["yes", "no"]),
        ("layernorm-simple", {"variance_error": 0.5}, ["yes", "yes"]),
        ("layernorm-simple", {"variance_excess": 1e-8}, ["yes", "no"]),
    ],
)
def test_a_statement_that_is_not_met_does_not_hold(norm, changed, holds):
    met = {"mean_error": 0.0, "variance_excess": 0.0, "variance_error": 0.0}
    ratios = {"positions": 5, "variance_ratio": 1.0, "least_variance_ratio": 1.0}
    rows = detached.verdicts(pd.DataFrame([{"norm": norm, **met, **ratios, **changed}]))
    assert [row["holds"] for row in rows] == holds


def test_a_gradient_along_y_loses_all_of_its_variance():
    x = normal(4, DIM)
    y = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, correction=0, keepdim=True)
    # what stays is due to eps = 1e-5 beside a variance of about 1
    assert detached.margins("layernorm-simple", x, y).variance_ratio.max() < 1e-4


# AdaNorm's scale


def test_the_linear_scale_has_the_stated_means():
    x = 3 * normal(5, DIM) + 1
    y = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, correction=0, keepdim=True)
    torch.testing.assert_close(adaptive_scale.standardized(x), y, rtol=0, atol=ROUNDING)
    by_hand = 2 * (1 - 0.1 * y) * y
    torch.testing.assert_close(adaptive_scale.z_of(x), by_hand, rtol=0, atol=ROUNDING)
    assert (by_hand.mean(dim=-1) + 0.2).abs().max() < ROUNDING  # -C k
    for phi in adaptive_scale.PHI.values():
        assert (phi(y).mean(dim=-1) - 2).abs().max() < ROUNDING


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, ["yes", "yes", "yes"]),
        ({"phi_error": 1e-8}, ["no", "yes", "yes"]),
        ({"z_largest": -0.19}, ["yes", "no", "yes"]),
        ({"z_least": -0.21}, ["yes", "no", "yes"]),
        ({"share_outside": 0.011}, ["yes", "yes", "no"]),
    ],
)
def test_a_scale_that_is_not_as_stated_does_not_hold(changed, holds):
    row = {"phi": adaptive_scale.LINEAR, "positions": 5, "phi_error": 0.0}
    row |= {"z_least": -0.2, "z_largest": -0.2, "share_outside": 0.01}
    rows = adaptive_scale.verdicts(pd.DataFrame([{**row, **changed}]))
    assert [row["holds"] for row in rows] == holds


# PowerNorm


def test_the_identity_of_the_exact_gradient_holds():
    x, g = normal(40, 6) + 0.3, normal(40, 6, seed=1)
    found = lipschitz.exact_shares(x, g)
    torch.testing.assert_close(found.measured, found.by_formula, rtol=0, atol=ROUNDING)
    assert found.measured.max() <= 1
    along = lipschitz.exact_shares(x, x)
    assert along.measured.max() < ROUNDING


def test_the_running_norm_subtracts_nothing_from_its_first_gradient():
    x, g = normal(40, 6), normal(40, 6, seed=1)
    norm = lipschitz.running_norm(6)
    found = lipschitz.running_shares(norm, x, g)  # nu is 0 at the start
    torch.testing.assert_close(found.measured, torch.ones(6).double(), rtol=0, atol=ROUNDING)
    assert norm.nu.any()


def test_pn_has_seen_the_batches_before_it_is_measured():
    one = Activations("encoder", normal(40, 6), normal(40, 6, seed=1))
    (found,) = lipschitz.last_epoch([one])
    assert (found.measured - 1).abs().min() > ROUNDING  # nu is not 0 any more


def test_what_a_pass_of_pn_shows_is_what_the_formulas_give():
    x, g = normal(40, 6), normal(40, 6, seed=1)
    first, second = bounded_gradient.passes([Activations("encoder", x, g)], epochs=2)
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
    batches = [Activations("encoder", x, g), Activations("encoder", x, g / 1000)]
    *_, last = bounded_gradient.passes(batches, epochs=1)
    psi2 = torch.stack([torch.ones(6).double(), 0.9 + 0.1 * x.square().mean(dim=0)]) + 1e-5
    gamma = x.square().mean(dim=0) / psi2
    lambda_ = torch.stack([(g * x).mean(dim=0), (g * x).mean(dim=0) / 1000]) / psi2.sqrt()
    nu = 0.1 * lambda_[0] * (1 - 0.1 * gamma[1]) + 0.1 * lambda_[1]
    bound = (lambda_.abs() / gamma)[0]  # that of the second batch is a thousandth
    assert last["nu"] == pytest.approx((nu.abs() / bound).max().item(), rel=ROUNDING)


def test_a_gradient_above_its_bound_does_not_hold():
    row = {"tokens": "random", "placement": "pre", "step": 0.1, "nu": 1.0, "gradient": 1.01}
    rows = bounded_gradient.verdicts(pd.DataFrame([{**row, "share": 1.2}]))
    assert [row["holds"] for row in rows] == ["yes", "yes", "no", "-"]


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, ["yes", "yes"]),
        ({"identity_error": 1e-3}, ["no", "yes"]),
        ({"largest_share": 1.001}, ["yes", "no"]),
    ],
)
def test_a_bound_that_is_exceeded_does_not_hold(changed, holds):
    row = {"norm": lipschitz.EXACT, "tokens": "random", "placement": "pre"}
    row |= {"identity_error": 0.0, "channels_above": 0.0}
    row |= {"least_share": 0.5, "mean_share": 0.9, "largest_share": 1.0}
    rows = list(lipschitz.verdicts(pd.DataFrame([{**row, **changed}])))
    assert [row["holds"] for row in rows] == holds
    of_running = lipschitz.verdicts(pd.DataFrame([{**row, "norm": lipschitz.APPROXIMATE}]))
    assert [row["holds"] for row in of_running] == ["-"]  # nothing is stated of it


def test_padding_is_not_among_the_activations():
    batch, pad = BATCHES.draw(0), BATCHES.source_words.pad()
    source = batch.source.clone()
    source[0, :5] = pad
    padded = Batches(BATCHES.source_words, BATCHES.target_words, (batch._replace(source=source),))
    model = full("pre", "layernorm", 1, 8, padded, seed=0)
    found = encoder_activations(model, padded, 0)
    assert {one.x.shape for one in found} == {one.g.shape for one in found}
    assert {len(one.x) for one in found} == {source.ne(pad).sum().item()}
