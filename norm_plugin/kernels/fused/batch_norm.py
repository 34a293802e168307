"""BatchNorm in two passes forward, for mu_B and sigma_B and for x_hat, and two backward."""

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
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.base.workers import worker_count
from norm_plugin.norms.batch_norm import BatchNorm
from norm_plugin.norms.regularized_batch_norm import Moments, RegularizedBatchNorm
from norm_plugin.norms.rep_batch_norm import RepBatchNorm


class BatchNormBatch(ColumnPass):
    """Compute x_hat = (u - mu_B) / sigma_B with its exact gradient.

    Args:
        over_padding: use n/N of the variance, that is, divide by all N positions.
        others: the arguments of :class:`ColumnPass`.
    """

    def __init__(self, *others: Any, one_call: bool = True, over_padding: bool = False) -> None:
        super().__init__(*others, one_call=one_call and not over_padding)
        self.over_padding = over_padding
        self.numbers: Tensor | None = None  # of a backend that updates running statistics
        self.share: Tensor | None = None
        # Further gradients of mean and variance, added to c and b
        self.pull: tuple[Tensor | None, Tensor | None] = (None, None)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.updating is not None:
            return self.normalize_and_update(x, weight, bias)
        if self.one_call is not None:
            y, self.mean, self.variance, self.inverse, self.count, self.rstd = (
                self.one_call.batch_forward(
                    x, self.valid, self.groups, self.eps, True, weight, bias
                )
            )
            self.shift = self.mean
        else:
            self.see(x)
            y, _ = self.map(x, self.gain(weight), bias, bias)
        self.update_running(x)
        return y

    def normalize_and_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return y; the backend updates the running statistics."""
        share = self.norm.share_of_batch(self.norm.momentum)
        running = (None, None) if share is None else (self.norm.running_mean, self.norm.running_var)
        y, self.numbers, self.rstd = self.updating.batch_norm_forward(
            x, self.valid, self.groups, self.eps, True, weight, bias, *running, share or 0.0
        )
        return y

    def update_running(self, x: Tensor) -> None:
        """Update the running statistics. x: as in ``forward``."""
        self.norm.update_running(
            self.mean, self.variance, self.count, self.ops.update_running_average
        )

    def see(self, x: Tensor) -> None:
        """Compute mu_B, sigma_B^2 and 1 / sigma_B, (C,) each."""
        total, squares = self.moments(x, center=True)
        self.mean = self.shift = self.means(total, len(x))
        if self.sync:
            squares = squares + self._between_workers(total, x)
        self.variance = self.means_with_known_count(squares)
        if self.over_padding:
            self.share = self.count / max(len(x), 1)
            self.variance = self.variance * self.share
        self.inverse = torch.rsqrt(self.variance + self.eps)

    def _between_workers(self, total: Tensor, x: Tensor) -> Tensor:
        """Return n (own mean - mu_B)^2: the squares around mu_B minus those around the own mean."""
        count = total.new_full((), len(x)) if self.valid is None else self.valid.sum()
        return count * (total / count.clamp(min=1) - self.mean).square()

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.updating is not None:
            dx, numbers = self.updating.batch_norm_backward(
                *(dy, x, self.rstd, self.valid, True, self.numbers, weight, *self.pull),
                *(None, 0.0, 1.0),
            )
            return dx, numbers[1], numbers[0]
        if self.one_call is not None:
            dx, dweight, every, _ = self.one_call.batch_backward(
                *(dy, x, self.rstd, self.valid, self.shift, self.inverse, weight, self.count),
                *self.pull,
            )
            return dx, dweight, every
        every, real, with_u = self.products(dy, x)
        dweight = with_u * self.inverse
        mean_g, mean_gx = (
            self.means_with_known_count(weight * real),
            self.means_with_known_count(weight * dweight),
        )
        constant, u_coef = self.coefficients(mean_g, mean_gx)
        dx, _ = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, self.shift, self.gain(weight), constant, u_coef, False
        )
        return dx, dweight, every

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> ParameterGradients:
        if self.numbers is not None:
            self.shift, self.inverse = self.numbers[0], self.numbers[2]
        return super().backward_to_parameters(dy, x)

    def inverse_scale(self) -> Tensor:
        return self.inverse

    def gain(self, weight: Tensor) -> Tensor:
        """Return the factor of u - mu_B, and of dy in the backward pass, (C,)."""
        return weight * self.inverse

    def coefficients(self, mean_g: Tensor, mean_gx: Tensor) -> tuple[Tensor, Tensor]:
        """Return c and b of du, (C,) each, given mean_V(g) and mean_V(g x_hat)."""
        constant, u_coef = -mean_g * self.inverse, -mean_gx * self.inverse.square()
        if self.share is not None:
            u_coef = u_coef * self.share
        to_constant, to_u = self.pull
        if to_constant is None or to_u is None:
            return constant, u_coef
        return constant + to_constant, u_coef + to_u


def by_running_moments(norm: RunningMomentsNorm, slope: Tensor | None = None) -> Inference:
    """Return gamma (u - running mean) / running deviation + beta + slope u; slope: (1,) or None."""
    return Inference((norm.running_var + norm.eps).sqrt(), norm.running_mean, slope)


class PaperOrReleased(BatchNormBatch):
    """BatchNorm; in its released variant, the running variance is updated by another value."""

    def update_running(self, x: Tensor) -> None:
        variance = self.norm.kept_variance(self.variance, x)
        self.norm.update_running(self.mean, variance, self.count, self.ops.update_running_average)


@fuses_columns(BatchNorm)
def batch_norm(norm: BatchNorm, valid: Tensor | None, ops: Ops) -> ColumnPass | Inference:
    """Return the pass that computes gamma * x_hat + beta."""
    if not norm.training:
        return by_running_moments(norm)
    return PaperOrReleased(norm, valid, ops, over_padding=norm.variant == "released")


# --- regularized: the gradient of the penalty is added per channel ------------------------------


class RegularizedBatch(BatchNormBatch):
    """BatchNorm whose mu_B and sigma_B^2 also get the gradient of the penalty."""

    def normalize_and_update(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, self.numbers, self.rstd = self.updating.batch_norm_forward(
            x, self.valid, self.groups, self.eps, True, weight, bias, None, None, 0.0
        )
        self.mean, self.variance, self.count = self.numbers[0], self.numbers[1], self.numbers[4, 0]
        self.update_running(x)
        return y

    def update_running(self, x: Tensor) -> None:
        running = self.norm.update_and_compare(
            self.mean, self.variance, self.count, self.ops.update_running_average
        )
        if self.wants_dx:  # the penalty only has a gradient of x
            self.of_penalty = self.penalty_coefficients(running)
            self.loss_scale = self.norm.loss_scale_later()

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        scale = self.loss_scale()
        self.pull = (self.of_penalty[0] * scale, self.of_penalty[1] * scale)
        return super().backward(dy, x, weight)

    def penalty_coefficients(self, running: Moments) -> tuple[Tensor, Tensor]:
        """Return what the penalty adds to c and b of du, (C,) each."""
        dmean, dvariance = self.norm.penalty_gradient(self.mean, self.variance, running)
        weight_of_all = self.norm.penalty_weight(self.count) * (worker_count() if self.sync else 1)
        # the derivative of mu_B by each u is 1/n, that of sigma_B^2 is 2 (u - mu_B)/n
        per_position = weight_of_all / self.count.clamp(min=1)
        return dmean * per_position, 2 * dvariance * per_position


@fuses_columns(RegularizedBatchNorm)
def regularized_batch_norm(
    norm: RegularizedBatchNorm, valid: Tensor | None, ops: Ops
) -> ColumnPass | Inference:
    """Return the pass that computes gamma * x_hat + beta."""
    return RegularizedBatch(norm, valid, ops) if norm.training else by_running_moments(norm)


# --- RepBN: eta x in the same map; the blend with LayerNorm uses the plain form -----------------


class RepBatch(BatchNormBatch):
    """Compute gamma x_hat + beta + eta x = (gamma / sigma_B + eta) (x - mu_B) + beta + eta mu_B."""

    def __init__(self, norm: RepBatchNorm, valid: Tensor | None, ops: Ops) -> None:
        super().__init__(norm, valid, ops, one_call=False)  # the single call has another gain
        self.others = (norm.eta,)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        self.eta = to_statistics_dtype(self.norm.eta, x).detach()
        self.see(x)
        y, _ = self.map(x, self.gain(weight), bias + self.eta * self.mean, bias)
        self.update_running(x)
        return y

    def gain(self, weight: Tensor) -> Tensor:
        return super().gain(weight) + self.eta

    def products(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        every, real, with_centered = super().products(dy, x)
        self.deta = (with_centered + self.mean * real).sum()
        return every, real, with_centered

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> ParameterGradients:
        gradients = super().backward_to_parameters(dy, x)
        return (*gradients, self.deta)

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        gradients = super().backward(dy, x, weight)
        return (*gradients, self.deta)


@fuses_columns(RepBatchNorm)
def rep_batch_norm(
    norm: RepBatchNorm, valid: Tensor | None, ops: Ops
) -> ColumnPass | Inference | None:
    """Return the pass that computes gamma * x_hat + beta + eta * x; None during the blend."""
    if norm.warmup_updates:
        return None
    return RepBatch(norm, valid, ops) if norm.training else by_running_moments(norm, norm.eta)
