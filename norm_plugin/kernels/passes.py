"""The passes over memory of which the fused norms consist: what a backend provides.

The cost of a norm is that of its reads and writes, so each function here is one pass over N x C
tensors, or two if the second finds the row in the cache. Most operations on C numbers stay in
Python. A backend also has ``update_running_average``, the update of a running statistic. It may
have functions for more than one pass, since one call per operation on C numbers would cost more
than the arithmetic: ``update_nu``, the recursion of PowerNorm; ``batch_forward`` and
``batch_backward``, a whole norm by the batch's own statistics (the C++ backend); or
``batch_norm_forward``, ``running_norm_forward`` and their backward functions, whole norms that
update their running statistics as well (the Triton backend).

Shapes: N positions (rows), which may be 0, C channels, G groups of C/G channels.

    x, y, dy, dx   (N, C), contiguous, one dtype
    u              x * rstd with RMS pre-scaling, rstd = 1 / sqrt(mean x^2 + eps) over each of
                   ``groups`` groups of a row's channels; with 0 groups u = x and rstd is None
    valid          (N,), bool, True at real positions; None: all of them. V is their set.
    mean, rstd     (N, G), in the dtype of statistics: float64 for float64, else float32
    per channel    (C,), contiguous, in the dtype of statistics, for arguments and results

Values at padding, NaN and infinity included, do not affect anything that is defined over V.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class RowRule(NamedTuple):
    """How each group of channels of a row becomes z = (x - mean) * rstd, and y from z.

        mean    the group's mean, or 0 without ``center``
        rstd    1 / sqrt(mean (x - mean)^2 + eps), or 1 / (s + eps) if ``released``, with
                s^2 = sum (x - mean)^2 / (C/G - 1)
        y       weight * z + bias, or C (1 - k z) z if ``phi`` = (C, k) is given, where
                C (1 - k z) is a constant for the gradient

    Attributes:
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


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of means, rstd and per-channel tensors for an input ``x``."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


class Ops(Protocol):
    """A backend. Every function allocates its results and changes no argument.

    Those of whole norms and ``update_nu`` are optional; for their arguments see
    ``triton/batch_statistics.py`` and ``cpu/csrc/batch_statistics.inc``, and for their use
    ``fused/batch_norm.py`` and ``fused/power_norm.py``.
    """

    def takes(self, x: Tensor) -> bool:
        """Return whether the functions below support the dtype and width of ``x``."""

    def update_running_average(
        self, buffer: Tensor, value: Tensor, weight: float, count: Tensor
    ) -> None:
        """Update a running statistic as ``norms/base/means.py`` does; all on one device."""

    def row_forward(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, rule: RowRule
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return y, mean (None without ``center``) and rstd. weight, bias: (C,) or None."""

    def row_backward(
        self,
        dy: Tensor,
        x: Tensor,
        mean: Tensor | None,
        rstd: Tensor,
        weight: Tensor | None,
        rule: RowRule,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return dx; with a weight also its gradient, sum_N dy z, and with a mean sum_N dy.

        With g = weight * dy, or C (1 - k z) dy:  dx = rstd (g - mean(g)) - a z sum(g z), where a
        is rstd / (C/G), or 1 / ((C/G - 1) s) if ``released``, 0 for s = 0. Without
        ``through_mean`` or ``center`` the first mean is omitted, without ``through_rstd`` the
        last term. sum_N dy is the gradient of the bias.
        """

    def pointwise_forward(
        self,
        x: Tensor,
        function: str,
        slope: Tensor,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Return weight * f(slope x + shift) + bias; f: tanh or erf; slope, shift: (1,)."""

    def pointwise_backward(
        self,
        dy: Tensor,
        x: Tensor,
        function: str,
        slope: Tensor,
        shift: Tensor | None,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return dx, and the gradients of slope (1,), shift (1,), weight (C,) and bias (C,)."""

    def column_moments(
        self, x: Tensor, valid: Tensor | None, groups: int, eps: float, center: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return sum_V u, sum_V (u - mean_V u)^2 (without ``center`` sum_V u^2), and rstd.

        Values are centered before they are squared and summed, so that a mean far from 0 costs no
        digits.
        """

    def column_map(
        self,
        x: Tensor,
        rstd: Tensor | None,
        valid: Tensor | None,
        groups: int,
        eps: float,
        shift: Tensor | None,
        gain: Tensor,
        offset: Tensor,
        at_padding: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return y = (u - shift) * gain + offset, the rstd, and the sums of u^2, (2, C).

        The first is sum_V u^2, the second the sum over the rows at padding if they are mapped,
        else 0.

        Args:
            rstd: as from column_moments; None: computed here, if there are groups.
            shift: None: 0.
            at_padding: y at padding; None: padding is mapped like every other row.
        """

    def column_products(
        self,
        dy: Tensor,
        x: Tensor,
        rstd: Tensor | None,
        valid: Tensor | None,
        shift: Tensor | None,
    ) -> Tensor:
        """Return (3, C): sum_N dy, sum_V dy and sum_V dy (u - shift)."""

    def column_gradient(
        self,
        dy: Tensor,
        x: Tensor,
        rstd: Tensor | None,
        valid: Tensor | None,
        shift: Tensor | None,
        dy_coef: Tensor,
        constant: Tensor | None,
        u_coef: Tensor,
        sums: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return dx, and the three sums of column_products; without ``sums`` an empty tensor.

        du = dy_coef * dy + constant + u_coef * (u - shift) at V, 0 at padding; give both shift and
        constant, or neither. With pre-scaling this is followed by dx = rstd (du - u mean(du u)),
        with the mean over the group.
        """

    def dropout_sum(self, stream: Tensor | None, branch: Tensor, p: float, seed: int) -> Tensor:
        """Return stream + mask * branch, or mask * branch without a stream.

        The mask is defined in ``dropout.py``. stream, branch: contiguous, of one shape and dtype;
        p in [0, 1); seed in [0, 2^63).
        """
