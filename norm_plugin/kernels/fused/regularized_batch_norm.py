"""Regularized BatchNorm: BatchNorm, and the gradient of the penalty added per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.autograd.columns import column_norm
from norm_plugin.kernels.fused.batch_norm import BatchNormBatch, infer_by_moments
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.base.workers import worker_count
from norm_plugin.norms.regularized_batch_norm import RegularizedBatchNorm


class RegularizedBatch(BatchNormBatch):
    """BatchNorm whose mu_B and sigma_B^2 get the penalty's gradient too."""

    def __init__(self, norm: RegularizedBatchNorm, passes_on: bool, *others: Any) -> None:
        """passes_on: there is a gradient, which the penalty's joins; others: as in Batch."""
        super().__init__(*others)
        self.norm, self.passes_on = norm, passes_on

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = super().forward(x, weight, bias)
        self.norm.see_and_move(self.mean, self.variance, self.count, self.ops.move)
        if self.passes_on:
            self.pull = self.of_penalty()
        return y

    def of_penalty(self) -> tuple[Tensor, Tensor]:
        """What the penalty adds to c and b of du, (C,) each."""
        with torch.enable_grad():
            statistics = [one.detach().requires_grad_() for one in (self.mean, self.variance)]
            penalty = self.norm.penalty(*statistics)
        of_mean, of_variance = torch.autograd.grad(penalty, statistics)
        weight_of_all = self.norm.penalty_weight(self.count) * (worker_count() if self.sync else 1)
        # mu_B is 1/n of each u, sigma_B^2 is 2 (u - mu_B)/n
        per_position = weight_of_all / self.count.clamp(min=1)
        return of_mean * per_position, 2 * of_variance * per_position


@fuses(RegularizedBatchNorm)
def regularized_batch_norm(
    norm: RegularizedBatchNorm, x: Tensor, valid: Tensor | None, ops: Ops
) -> Tensor | None:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        return infer_by_moments(norm, x, ops, groups=0)
    passes_on = torch.is_grad_enabled() and x.requires_grad
    batch = RegularizedBatch(norm, passes_on, ops, valid, 0, norm.eps, norm.sync)
    return column_norm(norm, x, batch)
