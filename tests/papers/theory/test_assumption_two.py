"""PowerNorm's Assumption 2 and Lemma 4: the length of the normalized input, and nu."""

from __future__ import annotations

import math

import pytest
import torch

from known_cases import ROUNDING, normal
from norm_plugin.norms import build_norm
from norm_plugin.norms.power_norm import PowerNorm
from papers.theory import assumption_two


def test_the_assumption_is_counted_by_position_and_by_channel():
    x_hat = torch.zeros(4, 2, dtype=torch.float64)
    x_hat[0], x_hat[1, 0] = torch.tensor([4.0, 3.0]), 3.0
    row = assumption_two.measured_x_hat(x_hat)
    assert (row["channels"], row["mean_length2"]) == (2, pytest.approx(34 / 4))
    assert (row["largest_length2"], row["largest_square"]) == (25, 16)
    assert (row["positions_within_10"], row["positions_within_100"]) == (0.75, 1)
    assert (row["channels_within_10"], row["channels_within_20"]) == (0.5, 1)


def test_the_mean_length_of_x_hat_is_the_number_of_channels():
    """Whatever the input: so no bound below d can hold for all positions."""
    x_hat = assumption_two.normalized(build_norm("powernorm-v", 32), 3 * normal(50, 32) + 1)
    row = assumption_two.measured_x_hat(x_hat)
    assert row["mean_length2"] == pytest.approx(32, rel=1e-4)  # eps = 1e-5 in the root
    assert row["largest_length2"] >= 32


def test_the_bound_of_nu_has_the_constants_of_the_proof():
    x_hat, g = torch.ones(5, 4, dtype=torch.float64), torch.full((5, 4), 3.0).double()
    bound = assumption_two.nu_bound([x_hat, x_hat], [g, g], alpha=0.9)
    c1, c2, c3 = 2.0, 6.0, 0.1  # C3 is that of the first batch, (1 - 0.9) * 1
    k = math.ceil(math.log(0.1 * c3 / (2 * c1**2)) / math.log(0.9))
    c5 = c3 / (2 * 0.1 * 0.9 ** (k - 1))
    by_hand = 0.1 * (2 * c1 * c2 / (0.1 * c5) + k * c1 * c2) * 2  # sqrt(4) for the 4 channels
    assert bound == pytest.approx(by_hand, rel=ROUNDING)
    norm = PowerNorm(4, layer_scale_groups=0, eps=0.0).double().train()
    for _ in range(2):
        (norm(x_hat.requires_grad_()) * g).sum().backward()
    assert norm.nu.norm() < bound
