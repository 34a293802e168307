"""Norms that divide by the running mean and variance of their batches in inference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from norm_plugin.norms.base.contract import InferenceAffine
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.norms.base.workers import worker_count


class RunningMomentsNorm(BatchStatisticsNorm):
    """A norm that keeps the running mean and variance of its batches; subclasses normalize.

    Args:
        dim: number of channels.
        eps: added to the variances, inside the root.
        momentum: weight of the new value in the running statistics, in (0, 1].
        warmup_updates: see :class:`BatchStatisticsNorm`.
        sync: see :class:`BatchStatisticsNorm`.
    """

    forward_updated_buffers: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")
    running_buffers: ClassVar[Mapping[str, str]] = {
        "mean": "running_mean",
        "variance": "running_var",
    }
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, dim: int, eps: float, momentum: float, warmup_updates: int = 0, sync: str = "off"
    ) -> None:
        super().__init__(dim, warmup_updates=warmup_updates, sync=sync)
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum is {momentum}; it must be in (0, 1]")
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, batch_first: bool = False
    ) -> Tensor:
        """Normalize ``x``: see :meth:`BatchStatisticsNorm.forward`; warn of a single position."""
        if self.training and x.numel() == self.dim and worker_count(self.sync) == 1:
            warnings.warn(
                f"a {type(self).__name__} trains on one position, whose own mean and variance 0 "
                "give the same output for any input, and draw the running variance to 0; torch's "
                "BatchNorm refuses it. Leave out such a batch, or call eval() of the norm",
                stacklevel=2,
            )
        return super().forward(x, padding_mask, batch_first)

    def standardize_by_running(self, x: Tensor) -> Tensor:
        """Return (x - running mean) / sqrt(running variance + eps). x: (..., C)."""
        root = (self.running_var + self.eps).sqrt()
        return (x - self.running_mean.to(x.dtype)) / root.to(x.dtype)

    def inference_map(self) -> InferenceAffine:
        return self.channel_map(self.running_var, self.eps, self.running_mean)

    def update_running(self, mean: Tensor, variance: Tensor, positions: Tensor) -> None:
        """Update the running mean and variance.

        Args:
            mean, variance: (C,), those of a batch.
            positions: (), the number n of real positions.
        """
        self.update_running_statistic(self.running_mean, mean, self.momentum, positions)
        self.update_running_statistic(self.running_var, variance, self.momentum, positions)
