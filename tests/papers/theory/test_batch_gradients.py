"""PowerNorm's Lemmas 2 and 3: gradients through the statistics of a batch."""

from __future__ import annotations

import pytest
import torch

from known_cases import ROUNDING, normal
from papers.theory import batch_gradients


@pytest.mark.parametrize("norm", batch_gradients.LEMMAS)
def test_the_lemmas_are_autograds_gradient_and_the_equations_are_off_by_the_gain_squared(norm):
    x, dy = normal(40, 3) + 0.5, normal(40, 3, seed=1)
    lemma, equation = batch_gradients.errors(norm, x, dy, torch.tensor([0.5, 1.0, 2.0]).double())
    assert lemma < ROUNDING
    assert equation == pytest.approx(1 / 0.5**2 - 1, rel=ROUNDING)
    assert max(batch_gradients.errors(norm, x, dy, torch.ones(3).double())) < ROUNDING


def test_a_gradient_without_its_last_term_is_not_that_of_the_lemma(monkeypatch):
    x, dy, gain = normal(40, 3), normal(40, 3, seed=1), torch.ones(3).double()
    entry = ("Lemma 3", "Eq. 6", lambda x, g: g / x.square().mean(dim=0).sqrt())
    monkeypatch.setitem(batch_gradients.LEMMAS, "powernorm-v", entry)
    assert batch_gradients.errors("powernorm-v", x, dy, gain)[0] > 0.01
