"""Temperature scaling of a classifier."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from norm_lab.config.studies import outcome_unit
from norm_lab.metrics import METRICS
from norm_plugin.checkpoints.calibration import calibrate


@pytest.fixture(name="sentences")
def made_up_sentences():
    """Logits and labels of 60 sentences, drawn so that a temperature of 2 is about right."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(60, 5, generator=generator) * 3
    labels = torch.multinomial((logits / 2).softmax(dim=-1), 1, generator=generator).view(-1)
    return logits, labels


def loss_of(logits, labels, temperature):
    """The mean of -log2 p of the right class, written out."""
    losses = []
    for row, label in zip((logits.double() / temperature).tolist(), labels.tolist()):
        losses.append(math.log2(sum(math.exp(x) for x in row)) - row[label] / math.log(2))
    return sum(losses) / len(losses)


def test_the_temperature_of_a_half_is_that_of_the_lowest_loss_on_the_other(sentences):
    logits, labels = sentences
    found = calibrate(logits, labels)
    grid = np.exp(np.linspace(-1, 3, 400))
    best = [grid[np.argmin([loss_of(logits[i::2], labels[i::2], t) for t in grid])] for i in (0, 1)]
    np.testing.assert_allclose(found.temperatures, best, rtol=0.011)  # a step of the grid
    even, odd = found.temperatures
    by_hand = (
        loss_of(logits[0::2], labels[0::2], odd) + loss_of(logits[1::2], labels[1::2], even)
    ) / 2
    assert found.calibrated == pytest.approx(by_hand, rel=1e-12)
    assert found.loss == pytest.approx(loss_of(logits, labels, 1), rel=1e-12)


def test_the_scale_of_the_logits_changes_the_loss_and_not_the_calibrated_loss(sentences):
    logits, labels = sentences
    plain, scaled = calibrate(logits, labels), calibrate(0.1 * logits, labels)
    assert abs(scaled.loss - plain.loss) > 0.1
    # T is found to about 1e-5 of itself, and the loss is flat there
    assert scaled.calibrated == pytest.approx(plain.calibrated, abs=1e-6)


def test_the_calibrated_loss_is_an_outcome():
    metric = METRICS["accuracy"]
    assert outcome_unit("calibrated_loss", metric, "here") == metric.loss_unit
