"""PowerNorm as its released code computes it; see ``norms/power_norm_released.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from norm_plugin.kernels.autograd.columns import Batch, Gradients, OfParameters, column_norm
from norm_plugin.kernels.autograd.gradients import to_statistics_dtype
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.power_norm import PowerNorm, Seen


class ReleasedBatch(Batch):
    """x_hat = u / psi, with psi_B under the gradient; padding is a position like the others."""

    def __init__(
        self, norm: PowerNorm, valid: Tensor | None, ops: Ops, running: Tensor, in_warmup: bool
    ) -> None:
        """running: psi^2 before this batch, (C,)."""
        super().__init__(ops, valid, norm.layer_scale_groups, norm.eps, sync=False)
        self.norm, self.loss_scale = norm, norm.loss_scale
        self.running, self.in_warmup = running, in_warmup

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.in_warmup:
            self._see_batch(self.moments(x, center=False)[1], x)
            self.psi = self.psi_batch
            y, squares = self.map(x, weight / self.psi, bias, None)
        else:
            self.psi = to_statistics_dtype(self.norm.root(self.running, self.running), x)
            y, squares = self.map(x, weight / self.psi, bias, None)
            self._see_batch(squares[0], x)
        self.gamma = squares.sum(dim=0) / (len(x) * self.psi.square())
        return y

    def _see_batch(self, squares: Tensor, x: Tensor) -> None:
        """psi_B from sum_V u^2, (C,); psi without a real position."""
        batch = self.means(squares, len(x))
        self.some = self.count > 0
        self.psi2 = torch.where(self.some, batch.to(self.running.dtype), self.running)
        self.psi_batch = to_statistics_dtype(self.norm.root(self.psi2, self.psi2), x)

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> OfParameters:
        every, _, with_u = self.ops.column_products(dy, x, self.rstd, None, None)
        return with_u / self.psi, every

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        nu = self.norm.nu
        u_coef = -nu.to(self.psi.dtype) * self.loss_scale / (self.psi * self.psi_batch)
        dx, (every, _, with_u) = self.ops.column_gradient(
            dy, x, self.rstd, None, None, weight / self.psi_batch, None, u_coef, True
        )
        dweight = with_u / self.psi
        lambda_ = weight * dweight / (len(x) * self.loss_scale)
        step = (1 - self.norm.alpha_bwd) * self.some.to(nu.dtype)
        self.ops.step_nu(nu, self.gamma, lambda_, step)
        return dx, dweight, every


def power_norm_as_released(
    norm: PowerNorm, x: Tensor, valid: Tensor | None, ops: Ops, seen: Seen
) -> tuple[Tensor, Tensor]:
    """y, (N, C), and psi^2 after this batch, (C,)."""
    batch = ReleasedBatch(norm, valid, ops, seen.psi2, in_warmup=seen.in_warmup)
    y = column_norm(norm, x, batch)
    return y, norm.next_psi2_as_released(seen.psi2, batch.psi2, seen.updates + 1, batch.some)
