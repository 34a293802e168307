"""Moving Average Batch Normalization (Yan et al. 2020, "Towards Stabilizing Batch Statistics in
Backward Propagation of Batch Normalization", MABN).

Per channel, over the set V of the n real positions of batch t and the M newest batches:

    forward     chi_t^2 = mean_V x^2
                s^2     = (1/M) sum_{i<M} chi_{t-i}^2              simple moving average
                r       = clip(s / S, 1/R, R),  a constant         S^2: exponential one
                z       = x / sqrt(s^2 + eps)                      y = gamma * r z + beta
    backward    g       = r gamma * dL/dy,    g_t = mean_V(g z)
                dL/dx   = (g - z (1/M) sum_{i<M} g_{t-i}) / sqrt(s^2 + eps)

and S^2 <- a_f S^2 + (1 - a_f) s^2, from 1, after the batch. Inference divides by S. The roots of r
contain eps too. During the warm-up r = 1 and s^2 = chi_t^2, and the gradient is exact, as in PN-V.

MABN does not subtract the mean. Instead it centers the weights of the layer before the norm. In a
Transformer the norm follows a residual sum, which has no weights, so nothing is centered here.

The paper could not be read. Everything follows its released code, with R = 5 and a_f = 0.98.
Differences from that code: its r is 1 for at least 1000 forwards; here this ends with the warm-up,
which counts optimizer updates. Before M batches were seen, the window holds the batches seen so
far. M is the batch size to imitate divided by the actual one; the default is that of the code's
ImageNet runs, 32 / 2.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from norm_plugin.norms.base.means import check_share
from norm_plugin.norms.base.registry import register_norm
from norm_plugin.norms.base.window import WindowedScale, WindowNorm, push, window_mean


@register_norm(
    "mabn",
    formula="gamma * r x / s + beta,  s^2 = mean of the last M batches' mean of x^2,  r = s / S",
    paper="Yan et al. 2020, MABN",
    released="centers the weights of the layer before, warm-up of at least 1000 forwards",
    paper_read=False,
)
class MovingAverageBatchNorm(WindowNorm):
    """Divide by a quadratic mean over positions that is averaged over batches, in both passes.

    Options:
        eps: added inside the root, against division by zero
        alpha_fwd: a_f, the share of the running S^2 that each forward keeps; inference uses S
        window: M, the number of batches whose statistics are averaged
        renorm_limit: R, the bound of r, which is clipped to [1/R, R]; with 1, r = 1
        warmup_updates: optimizer updates during which the batch's own statistics normalize;
            under fairseq the default is the learning-rate warm-up of the run
        sync: take statistics over the positions of all workers
    """

    exact_gradient: ClassVar[bool] = False

    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        alpha_fwd: float = 0.98,
        window: int = 16,
        renorm_limit: float = 5.0,
        warmup_updates: int = 0,
        sync: Literal["on", "off"] = "off",
    ) -> None:
        super().__init__(dim, eps, window, warmup_updates, sync)
        check_share("alpha_fwd", alpha_fwd)
        if not (math.isfinite(renorm_limit) and renorm_limit >= 1):
            raise ValueError(f"renorm_limit is {renorm_limit}; it must be 1 or more, and finite")
        self.alpha_fwd, self.renorm_limit = alpha_fwd, renorm_limit

    def update_windows(self, square: Tensor, count: Tensor) -> WindowedScale:
        """Update the window and S^2, see :meth:`WindowNorm.update_windows`; square is chi_t^2."""
        push(self.squares, self.squares_filled, square, count)
        averaged = window_mean(self.squares, self.squares_filled)
        used = square.to(averaged.dtype) if self.in_warmup else averaged
        root = (used + self.eps).sqrt()
        limit = 1.0 if self.in_warmup else self.renorm_limit
        ratio = (root / (self.running_square + self.eps).sqrt()).clamp(1 / limit, limit)
        statistic = partial(self.gradient_statistic, self.in_warmup)
        self.update_running_statistic(self.running_square, used, 1 - self.alpha_fwd, count)
        return WindowedScale(root, statistic, ratio)

    def gradient_statistic(self, in_warmup: bool, g_mean: Tensor, count: Tensor) -> Tensor:
        """Push g_t into its window and return the window's mean, (C,); once per backward pass."""
        push(self.gradients, self.gradients_filled, g_mean, count)
        averaged = window_mean(self.gradients, self.gradients_filled)
        return g_mean if in_warmup else averaged.to(g_mean.dtype)
