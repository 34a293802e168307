"""What the transcriptions of norms over a batch share."""

from __future__ import annotations

import numpy as np

from reference.position import RMSNorm


def mean_over(real, rows):
    """The mean of the rows whose numbers are in ``real``."""
    return sum(rows[i] for i in real) / len(real)


def geometric_mean(values):
    """The n-th root of the product of n arrays."""
    return np.prod(np.array(values), axis=0) ** (1 / len(values))


class RMSPrescale:
    """x / sqrt(mean x^2 + eps) over each group of channels of each position."""

    def __init__(self, groups, eps):
        self.groups, self.eps = groups, eps

    def forward(self, x):
        if self.groups == 0:
            return x
        self.parts = []
        for part in np.split(x, self.groups, axis=1):
            norm = RMSNorm(part.shape[1], gamma=np.ones(part.shape[1]), eps=self.eps)
            self.parts.append((norm, norm.forward(part, None)))
        return np.concatenate([scaled for _, scaled in self.parts], axis=1)

    def backward(self, g):
        if self.groups == 0:
            return g
        pieces = np.split(g, self.groups, axis=1)
        back = [norm.through_rms(piece) for (norm, _), piece in zip(self.parts, pieces)]
        return np.concatenate(back, axis=1)
