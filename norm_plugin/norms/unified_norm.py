"""Unified Normalization (Yang et al. 2022, "Unified Normalization for Accelerating and
Stabilizing Transformers", UN).

Per channel, over the set V of the n real positions of batch t and the M newest batches:

    forward     sigma_t^2 = mean_V x^2
                s^2       = (prod_{i<M} sigma_{t-i}^2)^(1/M)             geometric mean
                z         = x / sqrt(s^2 + eps)                y = gamma * z + beta
    backward    g         = gamma * dL/dy,    g_t = mean_V(g z)
                psi_t     = a_b psi_{t-1} + (1 - a_b) (1/M) sum_{i<M} g_{t-i}
                dL/dx     = (g - psi_t z) / sqrt(s^2 + eps)

The mean is not subtracted. Inference divides by the running s^2 <- a_f s^2 + (1 - a_f) s_t^2, from
1. During the warm-up, and at an outlier, s^2 = sigma_t^2 and the gradient uses g_t in place of
psi_t, which is the exact gradient, as in PN-V; psi itself is updated towards g_t.

With ``outlier_skip=on`` a batch is an outlier if, in any channel, the arithmetic mean of the
window exceeds the geometric one by more than M Var(sigma). The variance is one number: the
unbiased one over all channels and rows of the window before this batch. In the windows, the
running s^2 and psi_{t-1} replace the values of an outlier.

The paper could not be read. The equations come from public notes on it, and the rest from its
released code where the two agree. The single variance over all channels is the released code's: one
per channel, with M = 4, would call nearly every batch of hundreds of channels an outlier.
Differences from that code:

- The code also rescales the gradient by the ratio of s to the running s, within [1/5, 5]. The
  equations have no such factor.
- In the warm-up its gradient uses psi_t; here it is exact. With M = 1 its gradient is always
  exact; here it uses psi_t.
- Its warm-up counts forwards and includes the first M of them. Here it counts optimizer updates.
  Until M batches were seen, the window holds those seen so far, and no batch is an outlier.

For translation the code turns the outlier skip off, with M = 4 and a warm-up of 4000, so off is the
default.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from norm_plugin.norms.base.means import check_share, update_running_average
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.window import (
    WindowedScale,
    WindowNorm,
    geometric_mean,
    push,
    window_mean,
)


def is_outlier(squares: Tensor, recorded: Tensor, filled: Tensor) -> Tensor:
    """Return whether the newest batch is an outlier of a full window, bool ().

    Args:
        squares: (M, C), the window including that batch.
        recorded: (M, C), the window before it.
        filled: (), how many rows of ``recorded`` are filled.
    """
    size = squares.size(0)
    gap = squares.mean(dim=0) - geometric_mean(squares, squares.new_full((), size))
    spread = recorded.sqrt().var()  # one number, over rows and channels
    return (filled == size) & (gap > size * spread).any()


@register_norm(
    "unified",
    formula="gamma * x / s + beta,  s^2 = geometric mean of the last M batches' mean of x^2",
    paper="Yang et al. 2022, UN",
    released=(
        "gradient rescaled by the ratio of s to running s, and made with psi in "
        "the warm-up too, which counts forwards"
    ),
    paper_read=False,
)
class UnifiedNorm(WindowNorm):
    """Divide by a quadratic mean over positions that is smoothed over batches, in both passes.

    Options:
        eps: added inside the root, against division by zero
        alpha_fwd: a_f, the share of the running s^2 that each forward keeps; inference uses it
        alpha_bwd: a_b, the share of psi that each backward pass keeps
        window: M, the number of batches whose statistics are averaged
        warmup_updates: optimizer updates during which the batch's own statistics normalize;
            under fairseq the default is the learning-rate warm-up of the run
        outlier_skip: whether a batch far from the window is normalized by its own statistics
        sync: take statistics over the positions of all workers
    """

    exact_gradient: ClassVar[bool] = False

    psi: Tensor

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        alpha_fwd: float = 0.9,
        alpha_bwd: float = 0.9,
        window: int = 4,
        warmup_updates: int = 0,
        outlier_skip: Literal["on", "off"] = "off",
        sync: Literal["on", "off"] = "off",
    ) -> None:
        super().__init__(dim, eps, window, warmup_updates, sync)
        check_share("alpha_fwd", alpha_fwd)
        check_share("alpha_bwd", alpha_bwd)
        self.alpha_fwd, self.alpha_bwd = alpha_fwd, alpha_bwd
        self.outlier_skip = outlier_skip == "on"
        self.register_buffer("psi", torch.zeros(dim))

    def update_windows(self, square: Tensor, count: Tensor) -> WindowedScale:
        """Update the window and s^2, see :meth:`WindowNorm.update_windows`; square is sigma_t^2."""
        recorded, filled = self.squares.clone(), self.squares_filled.clone()
        push(self.squares, self.squares_filled, square, count)
        outlier = torch.zeros((), dtype=torch.bool, device=square.device)
        if self.outlier_skip and not self.in_warmup:
            outlier = is_outlier(self.squares, recorded, filled) & (count > 0)
        smoothed = geometric_mean(self.squares, self.squares_filled)
        used = square if self.in_warmup else torch.where(outlier, square, smoothed)
        self.squares[-1] = torch.where(outlier, self.running_square, self.squares[-1])
        statistic = partial(self.gradient_statistic, outlier, self.in_warmup)
        self.update_running_statistic(self.running_square, used, 1 - self.alpha_fwd, count)
        return WindowedScale((used + self.eps).sqrt(), statistic)

    def gradient_statistic(
        self, outlier: Tensor, in_warmup: bool, g_mean: Tensor, count: Tensor
    ) -> Tensor:
        """Return psi_t, (C,), from g_t, (C,), and update psi; called once per backward pass."""
        entering = torch.where(outlier, self.psi, g_mean.to(self.psi.dtype))
        push(self.gradients, self.gradients_filled, entering, count)
        smoothed = window_mean(self.gradients, self.gradients_filled)
        own = outlier | in_warmup
        updated = torch.where(own, g_mean.to(self.psi.dtype), smoothed)
        update_running_average(self.psi, updated, 1 - self.alpha_bwd, count)
        return torch.where(own, g_mean, self.psi.to(g_mean.dtype))
