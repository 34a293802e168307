"""PowerNorm and PN-V, forward and backward, in the symbols of norms/power_norm.py.

PN-V, and PowerNorm in its warm-up, take one pass for psi_B and one for x_hat; backward, one for the
means and one for dL/dx. Afterwards PowerNorm divides by known values: one pass in each direction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.fused.columns import (
    ColumnPass,
    Gradients,
    Inference,
    ParameterGradients,
    fuses_columns,
)
from norm_plugin.kernels.fused.gradients import to_statistics_dtype
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.power_norm import NuRecursion, NuUpdate, PowerNorm, update_nu
from norm_plugin.norms.power_norm_released import released_state, update_psi2_as_released
from norm_plugin.norms.power_norm_v import PowerNormV

# --- PN-V ---------------------------------------------------------------------------------------


class PowerNormVBatch(ColumnPass):
    """Compute x_hat = u / psi_B with the exact gradient (g - x_hat mean_V(g x_hat)) / psi_B."""

    psi2: Tensor
    inverse: Tensor
    numbers: Tensor | None = None  # of a backend that updates running statistics

    def __init__(self, norm: PowerNormV | PowerNorm, valid: Tensor | None, ops: Ops) -> None:
        super().__init__(norm, valid, ops, one_call=True)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.updating is not None:
            share = self.norm.share_of_batch(1 - self.norm.alpha_fwd)
            running = None if share is None else self.norm.psi2
            y, self.numbers, self.rstd = self.updating.batch_norm_forward(
                *(x, self.valid, self.groups, self.eps, False, weight, bias),
                *(None, running, share or 0.0),
            )
            return y
        if self.one_call is not None:
            y, _, self.psi2, self.inverse, self.count, self.rstd = self.one_call.batch_forward(
                x, self.valid, self.groups, self.eps, False, weight, bias
            )
        else:
            self.psi2 = self.means(self.moments(x, center=False)[1], len(x))
            self.inverse = torch.rsqrt(self.psi2 + self.eps)
            y, _ = self.map(x, weight * self.inverse, bias, bias)
        self.norm.update_running(self.psi2, self.count, self.ops.update_running_average)
        return y

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.updating is not None:
            dx, numbers = self.updating.batch_norm_backward(
                *(dy, x, self.rstd, self.valid, False, self.numbers, weight, None, None),
                *self.nu_recursion(),
            )
            return dx, numbers[1], numbers[0]
        if self.one_call is not None:
            dx, dweight, every, lambda_ = self.one_call.batch_backward(
                dy, x, self.rstd, self.valid, None, self.inverse, weight, self.count, None, None
            )
            self.watch(lambda_)
            return dx, dweight, every
        every, _, with_u = self.products(dy, x)
        dweight = with_u * self.inverse
        lambda_ = self.means_with_known_count(weight * dweight)
        self.watch(lambda_)
        dy_coef, u_coef = weight * self.inverse, -lambda_ * self.inverse.square()
        dx, _ = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, None, dy_coef, None, u_coef, False
        )
        return dx, dweight, every

    def inverse_scale(self) -> Tensor:
        return self.inverse if self.numbers is None else self.numbers[2]

    def nu_recursion(self) -> tuple[Tensor | None, float, float | Tensor]:
        """Return nu, 1 - a_b and the loss scale, for a backend that updates nu; nu may be None."""
        return None, 0.0, 1.0

    def watch(self, lambda_: Tensor) -> None:
        """Receive Lambda = mean_V(g x_hat), (C,), in the backward pass."""


@fuses_columns(PowerNormV)
def power_norm_v(norm: PowerNormV, valid: Tensor | None, ops: Ops) -> ColumnPass | Inference:
    """Return the pass that computes gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.psi2 + norm.eps).sqrt())
    return PowerNormVBatch(norm, valid, ops)


# --- PowerNorm, as in the paper; see norms/power_norm.py -----------------------------------------


def nu_update_of(ops: Ops) -> NuUpdate:
    """Return the function that updates nu: the backend's own if it has one."""
    own: NuUpdate = getattr(ops, "update_nu", update_nu)
    return own


class WarmingUp(PowerNormVBatch):
    """PN-V that also updates nu."""

    def __init__(self, recursion: NuRecursion, *others: Any) -> None:
        """Store the recursion; others: the arguments of :class:`PowerNormVBatch`."""
        super().__init__(*others)
        self.recursion = recursion

    def nu_recursion(self) -> tuple[Tensor | None, float, float | Tensor]:
        return self.recursion.nu, float(self.recursion.step_size), self.recursion.loss_scale()

    def watch(self, lambda_: Tensor) -> None:
        self.recursion.update(self.psi2 * self.inverse.square(), lambda_, nu_update_of(self.ops))


class Running(ColumnPass):
    """Compute x_hat = u / psi_{t-1} with the approximate gradient of Algorithm 2."""

    def __init__(self, psi2: Tensor, recursion: NuRecursion, *others: Any) -> None:
        """Store psi2 = psi_{t-1}^2, (C,); others: the arguments of :class:`ColumnPass`."""
        super().__init__(*others, one_call=True)
        self.psi2, self.recursion = psi2, recursion
        self.numbers: Tensor | None = None  # of a backend that updates running statistics

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.updating is not None:
            share = self.norm.share_of_batch(1 - self.norm.alpha_fwd)
            running = None if share is None else self.norm.psi2
            y, self.numbers, self.rstd = self.updating.running_norm_forward(
                *(x, self.valid, self.groups, self.eps, self.psi2, weight, bias),
                *(running, share or 0.0),
            )
            return y
        self.square = to_statistics_dtype(self.psi2 + self.eps, x)
        self.psi = self.square.sqrt()
        self.gain = weight / self.psi
        y, squares = self.map(x, self.gain, bias, bias)
        self.psi2_batch = self.means(squares[0], len(x))
        self.norm.update_running(self.psi2_batch, self.count, self.ops.update_running_average)
        return y

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.updating is not None:
            step, scale = float(self.recursion.step_size), self.recursion.loss_scale()
            dx, numbers = self.updating.running_norm_backward(
                *(dy, x, self.rstd, self.valid, self.numbers, weight),
                *(self.recursion.nu, step, scale),
            )
            return dx, numbers[1], numbers[0]
        u_coef = -self.recursion.scaled(self.psi) / self.square
        dx, (every, _, with_u) = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, None, self.gain, None, u_coef, True
        )
        dweight = with_u / self.psi
        gamma, lambda_ = (
            self.psi2_batch / self.square,
            self.means_with_known_count(weight * dweight),
        )
        self.recursion.update(gamma, lambda_, nu_update_of(self.ops))
        return dx, dweight, every

    def inverse_scale(self) -> Tensor:
        return 1 / self.psi if self.numbers is None else self.numbers[0].rsqrt()


@fuses_columns(PowerNorm)
def power_norm(norm: PowerNorm, valid: Tensor | None, ops: Ops) -> ColumnPass | Inference:
    """Return the pass that computes gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.psi2 + norm.eps).sqrt())
    if norm.variant == "released":
        return Released(norm, valid, ops)
    in_warmup, psi2, recursion = norm.pre_batch_state(valid)
    if in_warmup:
        return WarmingUp(recursion, norm, valid, ops)
    return Running(psi2, recursion, norm, valid, ops)


# --- PowerNorm, as in its released code; see norms/power_norm_released.py ------------------------


class Released(ColumnPass):
    """Compute x_hat = u / psi, with psi_B in the gradient; padding counts as any position."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        t, in_warmup, psi2 = self.norm.compute_once_per_forward(lambda: released_state(self.norm))
        if in_warmup:
            psi2_batch = self.set_batch_psi(self.moments(x, center=False)[1], x, psi2)
            self.psi = self.psi_batch
            y, squares = self.map(x, weight / self.psi, bias, None)
        else:
            self.psi = to_statistics_dtype((psi2 + self.eps).sqrt(), x)
            y, squares = self.map(x, weight / self.psi, bias, None)
            psi2_batch = self.set_batch_psi(squares[0], x, psi2)
        self.gamma = squares.sum(dim=0) / (len(x) * self.psi.square())
        step = (1 - self.norm.alpha_bwd) * self.some.to(psi2.dtype)
        self.recursion = self.norm.recursion(None, step)
        update_psi2_as_released(self.norm, psi2, psi2_batch, t, self.some)
        return y

    def set_batch_psi(self, squares: Tensor, x: Tensor, psi2: Tensor) -> Tensor:
        """Return psi_B^2, (C,), from sum_V u^2; without a real position, psi^2 before the batch."""
        batch = self.means(squares, len(x))
        self.some = self.count > 0
        psi2_batch = torch.where(self.some, batch.to(psi2.dtype), psi2)
        self.psi_batch = to_statistics_dtype((psi2_batch + self.eps).sqrt(), x)
        return psi2_batch

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        dy_coef = weight / self.psi_batch
        u_coef = -self.recursion.scaled(self.psi) / (self.psi * self.psi_batch)
        dx, (every, _, with_u) = self.ops.column_gradient(
            dy, x, self.rstd, None, None, dy_coef, None, u_coef, True
        )
        dweight = with_u / self.psi
        self.recursion.update(self.gamma, weight * dweight / len(x), nu_update_of(self.ops))
        return dx, dweight, every

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> ParameterGradients:
        every, _, with_u = self.ops.column_products(dy, x, self.rstd, None, None)
        return with_u / self.psi, every
