"""PowerNorm's Lemma 1 and Figure 7: the gain divided by the root mean square."""

from __future__ import annotations

import pytest
import torch

from known_cases import ROUNDING, normal
from papers.theory import gain_over_psi


def test_the_ratio_is_that_of_the_gain_to_the_root_mean_square():
    x, dy, gain = normal(40, 4), normal(40, 4, seed=1), torch.tensor([1.0, -2.0, 0.5, 1]).double()
    ratio, error = gain_over_psi.ratios(x, dy, gain, groups=0)
    by_hand = gain.abs() / x.square().mean(dim=0).sqrt()
    torch.testing.assert_close(ratio, by_hand, rtol=0, atol=ROUNDING)
    assert error < ROUNDING


def test_after_rms_pre_scaling_the_mean_of_psi_squared_over_the_channels_is_1():
    """So with gamma = 1 not every channel can have gamma <= psi_B."""
    x, dy, gain = 7 * normal(40, 4), normal(40, 4, seed=1), torch.ones(4).double()
    ratio, error = gain_over_psi.ratios(x, dy, gain, groups=1)
    # eps = 1e-5 is small compared with a mean square of about 49
    assert ratio.pow(-2).mean().item() == pytest.approx(1, rel=1e-5)
    assert ratio.max() > 1 and error < ROUNDING
