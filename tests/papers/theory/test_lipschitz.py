"""PowerNorm's gradient compared with the norms that it is bounded by."""

from __future__ import annotations

import torch

from known_cases import ROUNDING, normal
from papers.theory import lipschitz, models


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
