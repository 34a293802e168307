"""What a backend provides for the fused norms.

The cost of a norm is that of its reads and writes, so a function here takes as few passes over
N x C tensors as the norm needs. What is computed per channel between two passes, running statistics
included, belongs to the function too: one call per operation on C numbers would cost more than the
arithmetic.

Shapes: N positions (rows), which may be 0, C channels, G groups of C/G channels.

    x, y, dy, dx   (..., C), contiguous, one dtype; N is the product of all sizes but C
    u              x * rstd with RMS pre-scaling, rstd = 1 / sqrt(mean x^2 + eps) over each of
                   ``groups`` groups of a row's channels; with 0 groups u = x and rstd is None
    valid          (...), bool, contiguous, True at real positions, V; None: at all of them
    mean, rstd     (N, G), in the dtype of statistics: float64 for float64, else float32
    per channel    (C,), contiguous, in the dtype of statistics, for arguments and results

Values at padding, NaN and infinity included, do not affect anything that is defined over V.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class RowRule(NamedTuple):
    """How each group of channels of a row becomes z = (x - mean) * rstd, and y from z.

        mean    the group's mean, or 0 without ``center``
        rstd    1 / sqrt(mean (x - mean)^2 + eps), or 1 / (s + eps) if ``released``, with
                s^2 = sum (x - mean)^2 / (C/G - 1)
        y       weight * z + bias, or C (1 - k z) z if ``phi`` = (C, k) is given, where
                C (1 - k z) is a constant for the gradient. Given alpha and b, (C,), the weight is
                weight + tanh(x . b) alpha: without ``center``, and with one group

    Attributes:
        one_gain: the weight is one number, (1,), and each channel's gain is weight / sqrt(C);
            without ``center``, and with one group.
        through_mean: whether the gradient passes through the mean.
        through_rstd: whether the gradient passes through the rstd.
    """

    eps: float
    groups: int = 1
    center: bool = True
    released: bool = False
    through_mean: bool = True
    through_rstd: bool = True
    phi: tuple[float, float] | None = None
    one_gain: bool = False


class Row(IntEnum):
    """The rows of ``numbers``, (9, C), which norms over positions keep for the backward pass.

    They map u to (u - mean) gain + offset and have du = gain dy + c + b (u - mean). n, the number
    of positions in V, and the divisor of the means in b are the same for each channel.
    """

    MEAN = 0  # not defined without centering
    SQUARE = 1  # the variance or mean square
    UNIT = 2  # x_hat = (u - mean) * unit
    GAIN = 3
    COUNT = 4
    DIVISOR = 5
    CONSTANT = 6  # of the penalty, in c; of windows whether the batch is an outlier
    U_COEF = 7  # of the penalty, in b; of running norms b / -nu, of windows b / -psi
    OFFSET = 8  # only with eta


class BatchRule(NamedTuple):
    """A norm by the statistics of its batch, with their exact gradient.

    Attributes:
        groups, eps: of the pre-scaling and the roots.
        center: divide u - mean by the deviation; else u by its quadratic mean.
        over_padding: divide the squares by N, not n, and keep the unbiased running variance.
        penalty: the ``distance`` of norms/regularized_batch_norm.py; empty: no penalty.
        per_token, lambda_mean, lambda_std: the weights of the penalty.
    """

    groups: int
    eps: float
    center: bool = True
    over_padding: bool = False
    penalty: Literal["", "variances", "deviations"] = ""
    per_token: bool = False
    lambda_mean: float = 0.0
    lambda_std: float = 0.0


class RunningRule(NamedTuple):
    """PowerNorm by its running statistics, or ``released``: see norms/power_norm_released.py."""

    groups: int
    eps: float
    released: bool = False
    in_warmup: bool = False  # of the released form: divide by psi_B


class WindowRule(NamedTuple):
    """A norm by a window of statistics, in the symbols of norms/mabn.py and unified_norm.py.

    Attributes:
        geometric: the mean over the window.
        limit: R, the bound of the ratio; 1: there is none.
    """

    eps: float
    in_warmup: bool
    geometric: bool
    limit: float = 1.0
    outlier_skip: bool = False


Exchange = Callable[[Tensor], Tensor] | None
"""Returns the sums of each worker, (workers, k, C), for those of this one, (1, k, C); None: there
is one worker."""


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of means, rstd and per-channel tensors for an input ``x``."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


Ops = Any
"""A backend: a module with the functions that ``triton/passes.py`` names, whose files say what each
computes. They allocate their results; whole norms update the buffers that they are given."""
