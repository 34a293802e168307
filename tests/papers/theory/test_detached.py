"""AdaNorm's theorem on the gradients of LayerNorm with and without detached statistics."""

from __future__ import annotations

import pytest
import torch

from known_cases import DIM, ROUNDING, normal
from papers.theory import detached


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
