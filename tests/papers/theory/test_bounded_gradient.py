"""The steps of PowerNorm's nu, and its bound."""

from __future__ import annotations

import pytest
import torch

from known_cases import ROUNDING, normal
from papers.theory import bounded_gradient, models


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
