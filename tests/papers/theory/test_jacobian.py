"""The Jacobian of LayerNorm by its formula, and what the mean of the input changes."""

from __future__ import annotations

import math

import pytest
import torch

from known_cases import BATCHES, DIM, ROUNDING, normal, verdicts
from norm_plugin.norms import build_norm
from papers.theory import jacobian
from papers.theory.claim import Options


def test_the_jacobian_of_layernorm_is_that_of_the_formula():
    x, d = normal(DIM) + 3, DIM
    norm = build_norm("layernorm", d, eps=0.0).double()
    sigma = x.std(correction=0)
    y = (x - x.mean()) / sigma
    by_hand = (torch.eye(d, dtype=torch.float64) - 1 / d - torch.outer(y, y) / d) / sigma
    torch.testing.assert_close(jacobian.jacobian(norm, x), by_hand, rtol=0, atol=ROUNDING)
    assert jacobian.spectral_norm(norm, x) == pytest.approx(1 / sigma.item(), rel=ROUNDING)
    assert math.isnan(jacobian.spectral_norm(norm, x / 0))


def test_the_mean_of_the_input_counts_for_layernorm():
    rows = jacobian.measure_once(Options((), (), random=BATCHES, full_dim=DIM))
    *_, last = verdicts(jacobian, rows)
    assert (last["norm"], last["x"]) == ("layernorm", "normal, means 0, 1, 3, 10")
    assert last["holds"] == "no"
