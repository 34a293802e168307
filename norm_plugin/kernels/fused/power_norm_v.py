"""PN-V: a pass for psi_B and one for x_hat; backward one for the means and one for dL/dx."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.autograd.columns import Batch, Gradients, column_norm, infer
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.power_norm_v import PowerNormV


class PowerNormVBatch(Batch):
    """x_hat = u / psi_B with the exact gradient (g - x_hat mean_V(g x_hat)) / psi_B."""

    psi2: Tensor
    inverse: Tensor

    def __init__(self, *others: Any) -> None:
        """others: those of :class:`Batch`."""
        super().__init__(*others, one_call=True)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.one_call is not None:
            y, _, self.psi2, self.inverse, self.count, self.rate = self.one_call.batch_forward(
                x, self.valid, self.groups, self.eps, False, weight, bias
            )
            return y
        self.psi2 = self.means(self.moments(x, centre=False)[1], len(x))
        self.inverse = torch.rsqrt(self.psi2 + self.eps)
        return self.map(x, weight * self.inverse, bias, bias)[0]

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.one_call is not None:
            dx, with_x_hat, every, lambda_ = self.one_call.batch_backward(
                dy, x, self.rate, self.valid, None, self.inverse, weight, self.count, None, None
            )
            self.watch(lambda_)
            return dx, with_x_hat, every
        every, _, with_u = self.products(dy, x)
        with_x_hat = with_u * self.inverse
        lambda_ = self.more_means(weight * with_x_hat)
        self.watch(lambda_)
        of_dy, of_u = weight * self.inverse, -lambda_ * self.inverse.square()
        dx, _ = self.ops.column_gradient(
            dy, x, self.rate, self.valid, None, of_dy, None, of_u, False
        )
        return dx, with_x_hat, every

    def per_u(self) -> Tensor:
        return self.inverse

    def watch(self, lambda_: Tensor) -> None:
        """Called in the backward pass with Lambda = mean_V(g x_hat), (C,)."""


@fuses(PowerNormV)
def power_norm_v(norm: PowerNormV, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        root = (norm.psi2 + norm.eps).sqrt()
        return infer(norm, x, ops, norm.layer_scale_groups, norm.eps, root)
    batch = PowerNormVBatch(ops, valid, norm.layer_scale_groups, norm.eps, norm.sync)
    y = column_norm(norm, x, batch)
    norm.move_running(batch.psi2, batch.count, ops.move)
    return y
