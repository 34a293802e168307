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


def test_the_loss_of_training_comes_first(monkeypatch, capsys):
    def loss(model, generator):
        return torch.tensor(1.0 if model.training else 2.0, requires_grad=True)

    monkeypatch.setattr(future_leak, "loss", loss)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    future_leak.main(["powernorm", "--updates", "2"])
    assert capsys.readouterr().out == "| `powernorm` | 1.00 | 2.00 |\n"
