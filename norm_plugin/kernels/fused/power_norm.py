"""PN-V: a pass for psi_B and one for x_hat; backward one for the means and one for dL/dx."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.fused.columns import Batch, Gradients, OfParameters, column_norm, infer
from norm_plugin.kernels.fused.gradients import to_statistics_dtype
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.power_norm import NuRecursion, PowerNorm, Seen
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


# --- as the released code computes it; see norms/power_norm_released.py -------------------------


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


# --- PowerNorm: one pass each way, for both divide by known numbers; PN-V in its warm-up ---------


class WarmingUp(PowerNormVBatch):
    """PN-V, with the recursion of nu looking on."""

    def __init__(self, recursion: NuRecursion, *others: Any) -> None:
        """others: those of :class:`Batch`."""
        super().__init__(*others)
        self.recursion = recursion

    def watch(self, lambda_: Tensor) -> None:
        self.recursion.step(self.psi2 * self.inverse.square(), lambda_, self.ops.step_nu)


class Running(Batch):
    """x_hat = u / psi_{t-1} with the approximate gradient of Algorithm 2."""

    psi2: Tensor

    def __init__(self, psi: Tensor, recursion: NuRecursion, *others: Any) -> None:
        """psi: (C,), that of the batches before; others: those of :class:`Batch`."""
        super().__init__(*others)
        self.psi, self.recursion = psi, recursion

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, squares = self.map(x, weight / self.psi, bias, bias)
        self.psi2 = self.means(squares[0], len(x))
        return y

    def x_hat_per_u(self) -> Tensor:
        return 1 / self.psi

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        dy_coef = weight / self.psi
        u_coef = -self.recursion.scaled(self.psi) / self.psi.square()
        dx, (every, _, with_u) = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, None, dy_coef, None, u_coef, True
        )
        dweight = with_u / self.psi
        lambda_ = self.more_means(weight * dweight)
        self.recursion.step(self.psi2 / self.psi.square(), lambda_, self.ops.step_nu)
        return dx, dweight, every


@fuses(PowerNorm)
def power_norm(norm: PowerNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        root = norm.root(norm.psi2, norm.psi2)
        return infer(norm, x, ops, norm.layer_scale_groups, norm.eps, root)
    seen = norm.start()
    if norm.variant == "released":
        y, moved = power_norm_as_released(norm, x, valid, ops, seen)
    else:
        others = (norm.recursion(valid), ops, valid, norm.layer_scale_groups, norm.eps, norm.sync)
        batch: WarmingUp | Running
        if seen.in_warmup:
            batch = WarmingUp(*others)
        else:
            batch = Running(to_statistics_dtype(norm.root(seen.psi2, seen.psi2), x), *others)
        y = column_norm(norm, x, batch)
        moved = norm.next_psi2(seen.psi2, batch.psi2, batch.count, ops.move)
    norm.finish(moved)
    return y
