"""Windows over the statistics of the last M batches, and norms that use them in both passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from norm_plugin.norms.base.inference import InferenceAffine
from norm_plugin.norms.base.means import finite_or, is_finite, masked_means, zero_padding
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

GradientStatistic = Callable[[Tensor, Tensor], Tensor]
"""From mean_V(g z) of a batch, (C,), and its n, (), to the psi that takes its place, (C,)."""


class WindowedScale(NamedTuple):
    """What one batch is normalized with: x_hat = ratio * x / root.

    Attributes:
        root: (C,), a constant for the gradient.
        statistic: updates the windows of the backward pass.
        ratio: (C,), a constant too; None for 1.
    """

    root: Tensor
    statistic: GradientStatistic
    ratio: Tensor | None = None


class WindowedNorm(torch.autograd.Function):
    """z = x / root with the approximate gradient (g - psi z) / root."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        root: Tensor,
        valid: Tensor | None,
        statistic: GradientStatistic,
        sync: bool,
        loss_scale: Callable[[], float | Tensor],
    ) -> Tensor:
        """x: (..., C), 0 at padding; root: (C,), a constant; valid: bool (...) or None."""
        z = x / root
        ctx.save_for_backward(z, root, valid)
        ctx.statistic, ctx.sync, ctx.loss_scale = statistic, sync, loss_scale
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """(g - psi z) / root. With psi = mean_V(g z) and the batch's own root this is exact."""
        z, root, valid = ctx.saved_tensors
        (g_mean,), count = masked_means([g * z], valid, ctx.sync)
        scale = ctx.loss_scale()
        psi = ctx.statistic(g_mean / scale, count) * scale
        grad_x = (g - psi * z) / root
        return grad_x, None, None, None, None, None


class WindowNorm(BatchStatisticsNorm):
    """A norm that remembers sigma_t^2 = mean_V x^2 and g_t = mean_V(g z) of its last M batches.

    Both windows have their newest value last, and one count each of how many rows are filled.

    Args:
        dim: number of channels.
        eps: added to the mean squares, inside the root.
        window: M.
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
            return self.affine(self.divide_by_running(x))
        x = zero_padding(x, valid)

        def updated() -> WindowedScale:
            (square,), count = masked_means([x.detach().square()], valid, self.sync)
            return self.take_in(square, count)

        root, statistic, ratio = self.compute_once_per_forward(updated)
        scale = self.loss_scale_later()
        z = WindowedNorm.apply(x, root.to(x.dtype), valid, statistic, self.sync, scale)
        return self.affine(z if ratio is None else ratio.to(x.dtype) * z)

    def take_in(self, square: Tensor, count: Tensor) -> WindowedScale:
        """Update the windows by a batch, and return what normalizes it.

        Args:
            square: (C,), mean_V x^2 of the batch.
            count: (), its n.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define take_in()")

    def divide_by_running(self, x: Tensor) -> Tensor:
        """x / sqrt(running sigma^2 + eps), for inference. x: (..., C)."""
        return x / (self.running_square + self.eps).sqrt().to(x.dtype)

    def holds_values(self, buffer: str) -> Tensor:
        if buffer not in ("squares", "gradients"):
            return super().holds_values(buffer)
        return filled_rows(self.get_buffer(buffer), self.get_buffer(f"{buffer}_filled"))

    def inference_map(self) -> InferenceAffine:
        return self.channel_map(self.running_square, self.eps)


def push(window: Tensor, filled: Tensor, value: Tensor, count: Tensor) -> None:
    """Let ``value``, (C,), in at the end of ``window``, (M, C), unless ``count`` is 0.

    If it is not finite, the value before it comes in once more; nothing, if there is none.
    """
    some = (count > 0) & (is_finite(value) | (filled > 0))
    value = finite_or(value.detach().to(window.dtype), window[-1])
    rolled = torch.cat([window[1:], value.unsqueeze(0)])
    window.copy_(torch.where(some, rolled, window))
    filled.copy_((filled + some).clamp(max=window.size(0)))


def filled_rows(window: Tensor, filled: Tensor) -> Tensor:
    """bool (M, 1), True for the ``filled`` newest rows of ``window``, (M, C)."""
    size = window.size(0)
    return torch.arange(size, device=window.device).unsqueeze(1) >= size - filled


def window_mean(window: Tensor, filled: Tensor) -> Tensor:
    """Mean of the ``filled`` newest rows of ``window``, (M, C): (C,)."""
    values = torch.where(filled_rows(window, filled), window, window.new_zeros(()))
    return values.sum(dim=0) / filled.clamp(min=1)


def geometric_mean(window: Tensor, filled: Tensor) -> Tensor:
    """The geometric mean of the same; 0 where a row is 0."""
    return window_mean(window.log(), filled).exp()
