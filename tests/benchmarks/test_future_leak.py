"""benchmarks/future_leak.py: the unit of its losses, and which of the two is which."""

from __future__ import annotations

import pytest
import torch

import future_leak


def test_who_knows_the_letters_alone_has_a_loss_of_4_bits():
    def model(tokens):
        logits = torch.full((*tokens.shape, 4 + future_leak.LETTERS), -torch.inf)
        logits[..., 4:] = 0
        return (logits,)

    assert future_leak.loss(model, torch.Generator()).item() == pytest.approx(4)
