"""Numbers, batches and a model of one layer, of which the tests know what is measured."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from papers.theory.models import random_batches

BATCHES = random_batches()
DIM = 16
ROUNDING = 1e-12  # float64 sums of a few hundred numbers
PAIRS = 200  # sentences of the corpus for training


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def verdicts(claim, rows):
    """The rows of verdicts on these measurements."""
    return list(claim.verdicts(pd.DataFrame(rows)))


class Layer(nn.Module):
    """A layer that is only its second matrix, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc2 = nn.Linear(3, 5, bias=False).double()

    def forward(self, h):
        return self.fc2(h)


H, LABELS = normal(2, 4, 3), torch.tensor([[0, 1, 2, 3], [4, 1, 2, 9]])


def gradients_by_hand(setting):
    """The gradient of each position's loss."""
    logits, labels = setting.run()[0].flatten(0, 1), LABELS.flatten()
    losses = [nn.functional.cross_entropy(logits[i], labels[i]) for i in range(7)]
    weight = setting.model.fc2.weight
    return torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])
