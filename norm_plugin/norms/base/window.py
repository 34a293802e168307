"""Windows over the statistics of the last M batches, and norms that use them in both passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import InferenceAffine
from norm_plugin.norms.base.means import finite_or, is_finite, masked_means, zero_padding
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.norms.base.workers import Sync

GradientStatistic = Callable[[Tensor, Tensor], Tensor]
"""Computes psi, (C,), from mean_V(g z) of a batch, (C,), and its number of positions, ()."""


class WindowedScale(NamedTuple):
    """The scale of one batch: x_hat = ratio * x / root.

    Attributes:
        root: (C,), a constant for the gradient.
        statistic: updates the window of the backward pass and returns psi.
        ratio: (C,), a constant for the gradient; None: 1.
    """

    root: Tensor
    statistic: GradientStatistic
    ratio: Tensor | None = None


class WindowedNorm(torch.autograd.Function):
    """Compute z = x / root with the approximate gradient (g - psi z) / root."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        root: Tensor,
        valid: Tensor | None,
        statistic: GradientStatistic,
        sync: Sync,
        loss_scale: Callable[[], float | Tensor],
    ) -> Tensor:
        """Return x / root. x: (..., C), 0 at padding; root: (C,); valid: bool (...) or None."""
        z = x / root
        ctx.save_for_backward(z, root, valid)
        ctx.statistic, ctx.sync, ctx.loss_scale = statistic, sync, loss_scale
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return (g - psi z) / root; exact for psi = mean_V(g z) and the root of this batch."""
        z, root, valid = ctx.saved_tensors
        (g_mean,), count = masked_means([g * z], valid, ctx.sync)
        scale = ctx.loss_scale()
        psi = ctx.statistic(g_mean / scale, count) * scale
        grad_x = (g - psi * z) / root
        return grad_x, None, None, None, None, None


class WindowNorm(BatchStatisticsNorm):
    """A norm that keeps sigma_t^2 = mean_V x^2 and g_t = mean_V(g z) of its last M batches.

    Both windows have their newest value last, and each has a count of its filled rows.

    Args:
        dim: number of channels.
        eps: added to the mean squares, inside the root.
        window: M, the number of batches.
        warmup_updates: see :class:`BatchStatisticsNorm`.
        sync: see :class:`BatchStatisticsNorm`.
    """

    forward_updated_buffers: ClassVar[tuple[str, ...]] = (
        "squares",
        "squares_filled",
        "running_square",
    )
    running_buffers: ClassVar[Mapping[str, str]] = {"square": "running_square"}
    squares: Tensor
    squares_filled: Tensor
    gradients: Tensor
    gradients_filled: Tensor
    running_square: Tensor

    def __init__(self, dim: int, eps: float, window: int, warmup_updates: int, sync: str) -> None:
        super().__init__(dim, warmup_updates=warmup_updates, sync=sync)
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more")
        self.eps, self.window = eps, window
        self.register_buffer("squares", torch.zeros(window, dim))
        self.register_buffer("squares_filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("gradients", torch.zeros(window, dim))
        self.register_buffer("gradients_filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("running_square", torch.ones(dim))

    def normalize(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if not self.training:
            return self.affine(x / (self.running_square + self.eps).sqrt().to(x.dtype))
        x = zero_padding(x, valid)

        def updated() -> WindowedScale:
            (square,), count = masked_means([x.detach().square()], valid, self.sync)
            return self.update_windows(square, count)

        root, statistic, ratio = self.compute_once_per_forward(updated)
        scale = self.loss_scale_later()
        z = WindowedNorm.apply(x, root.to(x.dtype), valid, statistic, self.sync, scale)
        return self.affine(z if ratio is None else ratio.to(x.dtype) * z)

    def update_windows(self, square: Tensor, count: Tensor) -> WindowedScale:
        """Update the windows by a batch, and return the scale that normalizes it.

        Args:
            square: (C,), mean_V x^2 of the batch.
            count: (), its number n of real positions.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define update_windows()")

    def holds_values(self, buffer: str) -> Tensor:
        if buffer not in ("squares", "gradients"):
            return super().holds_values(buffer)
        return filled_rows(self.get_buffer(buffer), self.get_buffer(f"{buffer}_filled"))

    def inference_map(self) -> InferenceAffine:
        return self.channel_map(self.running_square, self.eps)


def push(window: Tensor, filled: Tensor, value: Tensor, count: Tensor) -> None:
    """Append ``value``, (C,), to ``window``, (M, C), and drop the oldest; not if ``count`` is 0.

    If ``value`` is not finite, the newest value is repeated, or nothing is done if there is none.
    """
    some = (count > 0) & (is_finite(value) | (filled > 0))
    value = finite_or(value.detach().to(window.dtype), window[-1])
    rolled = torch.cat([window[1:], value.unsqueeze(0)])
    window.copy_(torch.where(some, rolled, window))
    filled.copy_((filled + some).clamp(max=window.size(0)))


def filled_rows(window: Tensor, filled: Tensor) -> Tensor:
    """Return bool (M, 1), True for the ``filled`` newest rows of ``window``, (M, C)."""
    size = window.size(0)
    return torch.arange(size, device=window.device).unsqueeze(1) >= size - filled


def window_mean(window: Tensor, filled: Tensor) -> Tensor:
    """Return the mean, (C,), of the ``filled`` newest rows of ``window``, (M, C)."""
    values = torch.where(filled_rows(window, filled), window, window.new_zeros(()))
    return values.sum(dim=0) / filled.clamp(min=1)


def geometric_mean(window: Tensor, filled: Tensor) -> Tensor:
    """Return the geometric mean, (C,), of the ``filled`` newest rows; 0 if one of them is 0."""
    return window_mean(window.log(), filled).exp()
