"""Temperature scaling, which separates a classifier's loss from the scale of its logits.

Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2, divides the logits by one
number T > 0, chosen for the lowest loss. A norm that only shrinks the input of the classifier
lowers the loss of an over-confident model; after temperature scaling, that advantage is gone.

T is fitted on one half of the sentences and applied to the other half, and vice versa, so that no
sentence influences its own T. The halves are the sentences of even and of odd number in the order
of the corpus.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LOG_T = (-5.0, 5.0)
"""The range in which log T is searched."""


class CalibratedLoss(NamedTuple):
    """The losses of a classifier, in bits per sentence.

    Attributes:
        loss: the loss of the logits.
        calibrated: the loss after temperature scaling across the halves.
        temperatures: T as fitted on the even and on the odd sentences.
    """

    loss: float
    calibrated: float
    temperatures: tuple[float, float]


def loss_in_bits(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the mean cross-entropy, in bits, of logits (N, classes) divided by ``temperature``."""
    from torch.nn import functional

    return float(functional.cross_entropy(logits / temperature, labels)) / math.log(2)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T with the lowest loss; it is unique, since the loss is convex in 1 / T."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda log_t: loss_in_bits(logits, labels, math.exp(log_t)), bounds=LOG_T, method="bounded"
    )
    return math.exp(found.x)


def calibrate(logits: Tensor, labels: Tensor) -> CalibratedLoss:
    """Return the loss of a classifier with and without temperature scaling.

    Args:
        logits: (N, classes), in the order of the corpus, N at least 2.
        labels: (N,), the indices of the right classes.
    """
    logits = logits.double()
    halves = [(logits[start::2], labels[start::2]) for start in (0, 1)]
    even, odd = (fit_temperature(*half) for half in halves)
    losses = [loss_in_bits(*half, t) for half, t in zip(halves, (odd, even))]
    sizes = [len(half) for _, half in halves]
    mean = sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes)
    return CalibratedLoss(loss_in_bits(logits, labels), mean, (even, odd))
