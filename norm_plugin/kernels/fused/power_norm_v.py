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
            y, _, self.psi2, self.inverse, self.count, self.rstd = self.one_call.batch_forward(
                x, self.valid, self.groups, self.eps, False, weight, bias
            )
            return y
        self.psi2 = self.means(self.moments(x, center=False)[1], len(x))
        self.inverse = torch.rsqrt(self.psi2 + self.eps)
        return self.map(x, weight * self.inverse, bias, bias)[0]

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.one_call is not None:
            dx, dweight, every, lambda_ = self.one_call.batch_backward(
                dy, x, self.rstd, self.valid, None, self.inverse, weight, self.count, None, None
            )
            self.watch(lambda_)
            return dx, dweight, every
        every, _, with_u = self.products(dy, x)
        dweight = with_u * self.inverse
        lambda_ = self.more_means(weight * dweight)
        self.watch(lambda_)
        dy_coef, u_coef = weight * self.inverse, -lambda_ * self.inverse.square()
        dx, _ = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, None, dy_coef, None, u_coef, False
        )
        return dx, dweight, every

    def x_hat_per_u(self) -> Tensor:
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
