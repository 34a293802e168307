"""The means of AdaNorm's adaptive scale."""

from __future__ import annotations

import torch

from known_cases import DIM, ROUNDING, normal
from papers.theory import adaptive_scale


def test_the_linear_scale_has_the_stated_means():
    x = 3 * normal(5, DIM) + 1
    y = (x - x.mean(dim=-1, keepdim=True)) / x.std(dim=-1, correction=0, keepdim=True)
    torch.testing.assert_close(adaptive_scale.standardized(x), y, rtol=0, atol=ROUNDING)
    by_hand = 2 * (1 - 0.1 * y) * y
    torch.testing.assert_close(adaptive_scale.adanorm_output(x), by_hand, rtol=0, atol=ROUNDING)
    assert (by_hand.mean(dim=-1) + 0.2).abs().max() < ROUNDING  # -C k
    for phi in adaptive_scale.PHI.values():
        assert (phi(y).mean(dim=-1) - 2).abs().max() < ROUNDING
