"""BatchNorm: a pass for mu_B and sigma_B and one for x_hat; two more backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.fused.columns import Batch, Gradients, OfParameters, column_norm, infer
from norm_plugin.kernels.fused.gradients import to_statistics_dtype
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.base.workers import worker_count
from norm_plugin.norms.batch_norm import BatchNorm
from norm_plugin.norms.regularized_batch_norm import RegularizedBatchNorm
from norm_plugin.norms.rep_batch_norm import RepBatchNorm


class BatchNormBatch(Batch):
    """x_hat = (u - mu_B) / sigma_B with its exact gradient.

    Args:
        over_padding: take the share n/N of the variance, over all N positions.
        others: those of :class:`Batch`.
    """

    def __init__(self, *others: Any, one_call: bool = True, over_padding: bool = False) -> None:
        super().__init__(*others, one_call=one_call and not over_padding)
        self.over_padding = over_padding
        self.share: Tensor | None = None
        # Into c and b, from elsewhere
        self.pull: tuple[Tensor | None, Tensor | None] = (None, None)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.one_call is not None:
            y, self.mean, self.variance, self.inverse, self.count, self.rstd = (
                self.one_call.batch_forward(
                    x, self.valid, self.groups, self.eps, True, weight, bias
                )
            )
            self.shift = self.mean
            return y
        self.see(x)
        return self.map(x, self.gain(weight), bias, bias)[0]

    def see(self, x: Tensor) -> None:
        """mu_B, sigma_B^2 and 1 / sigma_B, (C,) each."""
        total, squares = self.moments(x, center=True)
        self.mean = self.shift = self.means(total, len(x))
        if self.sync:
            squares = squares + self._between_workers(total, x)
        self.variance = self.more_means(squares)
        if self.over_padding:
            self.share = self.count / max(len(x), 1)
            self.variance = self.variance * self.share
        self.inverse = torch.rsqrt(self.variance + self.eps)

    def _between_workers(self, total: Tensor, x: Tensor) -> Tensor:
        """n (own mean - mu_B)^2: the squares around mu_B beyond those around the own mean."""
        count = total.new_full((), len(x)) if self.valid is None else self.valid.sum()
        return count * (total / count.clamp(min=1) - self.mean).square()

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        if self.one_call is not None:
            dx, dweight, every, _ = self.one_call.batch_backward(
                *(dy, x, self.rstd, self.valid, self.shift, self.inverse, weight, self.count),
                *self.pull,
            )
            return dx, dweight, every
        every, real, with_u = self.products(dy, x)
        dweight = with_u * self.inverse
        of_g, of_gx = self.more_means(weight * real), self.more_means(weight * dweight)
        constant, u_coef = self.coefficients(of_g, of_gx)
        dx, _ = self.ops.column_gradient(
            dy, x, self.rstd, self.valid, self.shift, self.gain(weight), constant, u_coef, False
        )
        return dx, dweight, every

    def x_hat_per_u(self) -> Tensor:
        return self.inverse

    def gain(self, weight: Tensor) -> Tensor:
        """What u - mu_B is multiplied with, and dy in the backward pass, (C,)."""
        return weight * self.inverse

    def coefficients(self, of_g: Tensor, of_gx: Tensor) -> tuple[Tensor, Tensor]:
        """c and b of du, (C,) each, from mean_V(g) and mean_V(g x_hat)."""
        constant, u_coef = -of_g * self.inverse, -of_gx * self.inverse.square()
        if self.share is not None:
            u_coef = u_coef * self.share
        to_constant, to_u = self.pull
        if to_constant is None or to_u is None:
            return constant, u_coef
        return constant + to_constant, u_coef + to_u


def infer_by_moments(norm: RunningMomentsNorm, x: Tensor, ops: Ops, groups: int) -> Tensor | None:
    """gamma (u - running mean) / running deviation + beta; see :func:`infer`."""
    root = (norm.running_var + norm.eps).sqrt()
    return infer(norm, x, ops, groups, norm.eps, root, norm.running_mean)


@fuses(BatchNorm)
def batch_norm(norm: BatchNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta. x, y: (N, C)."""
    if not norm.training:
        return infer_by_moments(norm, x, ops, norm.layer_scale_groups)
    scale = (norm.layer_scale_groups, norm.eps)
    released = norm.variant == "released"
    batch = BatchNormBatch(ops, valid, *scale, norm.sync, over_padding=released)
    y = column_norm(norm, x, batch)
    kept = norm.kept_variance(batch.variance, x)
    norm.move_running(batch.mean, kept, batch.count, ops.move)
    return y


# --- regularized: the gradient of the penalty is added per channel ------------------------------


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


# --- RepBN: eta x in the same map; what blends LayerNorm in as well stays plain -----------------


class RepBatch(BatchNormBatch):
    """gamma x_hat + beta + eta x = (gamma / sigma_B + eta) (x - mu_B) + beta + eta mu_B."""

    def __init__(self, eta: Tensor, *others: Any) -> None:
        """eta: (1,); others: those of :class:`Batch`."""
        super().__init__(*others, one_call=False)  # whose gain is another
        self.eta = eta

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        self.see(x)
        return self.map(x, self.gain(weight), bias + self.eta * self.mean, bias)[0]

    def gain(self, weight: Tensor) -> Tensor:
        return super().gain(weight) + self.eta

    def products(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        every, real, with_centered = super().products(dy, x)
        self.of_eta = (with_centered + self.mean * real).sum()
        return every, real, with_centered

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> OfParameters:
        gradients = super().backward_to_parameters(dy, x)
        return (*gradients, self.of_eta)

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        gradients = super().backward(dy, x, weight)
        return (*gradients, self.of_eta)


@fuses(RepBatchNorm)
def rep_batch_norm(norm: RepBatchNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor | None:
    """gamma * x_hat + beta + eta * x. x, y: (N, C)."""
    if norm.warmup_updates:
        return None
    if not norm.training:
        root = (norm.running_var + norm.eps).sqrt()
        return infer(
            norm, x, ops, 0, norm.eps, root, norm.running_mean, to_statistics_dtype(norm.eta, x)
        )
    batch = RepBatch(to_statistics_dtype(norm.eta, x).detach(), ops, valid, 0, norm.eps, norm.sync)
    y = column_norm(norm, x, batch, norm.eta)
    norm.move_running(batch.mean, batch.variance, batch.count, ops.move)
    return y
