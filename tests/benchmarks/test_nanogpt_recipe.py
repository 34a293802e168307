"""benchmarks/nanogpt_recipe.py: its model is causal, its loss and its learning rate are right."""

from __future__ import annotations

import math

import pytest
import torch

import nanogpt_recipe as recipe


def test_the_model_does_not_see_the_future():
    torch.manual_seed(1)
    model = recipe.GPT(5)
    text = torch.randint(5, (2, 8))
    other = text.clone()
    other[:, 5] = (text[:, 5] + 1) % 5
    same = torch.isclose(model(text), model(other), atol=1e-6).all(dim=(0, 2))
    assert same.tolist() == [True] * 5 + [False] * 3


def test_each_character_but_the_first_counts_once(monkeypatch):
    torch.manual_seed(1)
    model = recipe.GPT(7)
    counted = []

    def nats(windows):
        counted.extend(windows[:, 1:].flatten().tolist())
        return torch.tensor(2.0 * windows[:, 1:].numel())

    monkeypatch.setattr(model, "nats", nats)
    text = torch.arange(3 * recipe.CONTEXT + 10)
    assert recipe.validation_loss(model, text) == 2.0
    assert counted == text[1:].tolist()


def test_the_learning_rate_rises_and_falls():
    updates = 1100
    assert recipe.learning_rate(0, updates) == 0
    assert recipe.learning_rate(recipe.WARMUP, updates) == recipe.PEAK
    middle = (recipe.PEAK + recipe.LOWEST) / 2
    assert recipe.learning_rate(600, updates) == pytest.approx(middle)
    assert recipe.learning_rate(updates, updates) == pytest.approx(recipe.LOWEST)


def test_a_text_that_repeats_is_learned(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "UPDATES", 60)
    monkeypatch.setattr(recipe, "WARMUP", 10)
    monkeypatch.setattr(recipe, "CONTEXT", 16)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    text = tmp_path / "input.txt"
    text.write_text("abcdefgh" * 200)
    recipe.main([str(text), "--seed", "3"])
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3: 60 updates in ")
    assert float(printed.split()[-1]) < math.log(8) / 4
