"""Norms over the positions of a batch, in as few passes as possible, forward and backward.

All of them map u, the input after RMS pre-scaling, channel by channel,

    y  = (u - shift) gain + offset           at real positions, else offset
    du = a dy + c + b (u - shift)            at real positions, else 0

and differ in how shift, gain, a, b and c are obtained: by the statistics of the batch, by running
ones, or by a window of batches. A backend computes them, and updates the running statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from norm_plugin.kernels.fused.gradients import (
    apply_of,
    as_rows,
    grad_like,
    in_shape,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import (
    BatchRule,
    Exchange,
    Ops,
    Row,
    RunningRule,
    WindowRule,
    statistics_dtype,
)
from norm_plugin.norms.base.contract import Norm
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from norm_plugin.norms.base.window import WindowNorm
from norm_plugin.norms.base.workers import gathered_rows, worker_count
from norm_plugin.norms.batch_norm import BatchNorm, ReleasedBatchNorm
from norm_plugin.norms.mabn import MovingAverageBatchNorm
from norm_plugin.norms.power_norm import PowerNorm
from norm_plugin.norms.power_norm_released import ReleasedPowerNorm
from norm_plugin.norms.power_norm_v import PowerNormV
from norm_plugin.norms.regularized_batch_norm import RegularizedBatchNorm
from norm_plugin.norms.rep_batch_norm import RepBatchNorm
from norm_plugin.norms.unified_norm import UnifiedNorm

LossScale = tuple[Tensor | None, float]
"""The loss scale as a tensor, (), or if that is None as a number."""


class Batch:
    """The forward and the backward pass of a norm over one batch, with the state between them.

    Args:
        norm: the norm, in training.
        valid: bool (N,), or None.
        ops: the backend.

    Attributes:
        numbers: (9, C), the rows of ``passes.Row``.
        shift: the row MEAN of ``numbers``; None: 0.
    """

    numbers: Tensor
    shift: Tensor | None = None
    rstd: Tensor | None = None
    loss_scale: Callable[[], float | Tensor] | None = None

    def __init__(self, norm: Any, valid: Tensor | None, ops: Ops) -> None:
        self.norm, self.valid, self.ops = norm, valid, ops
        self.exchange: Exchange = None
        if norm.sync and worker_count() > 1:
            self.exchange = partial(gathered_rows, dim=0)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        """Return y, (N, C), and update the running statistics.

        Args:
            x: (N, C), contiguous.
            weight, bias: (C,).
            eta: (1,), only of RepBN.
        """
        raise NotImplementedError

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, scale: LossScale
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight, bias and, of RepBN, of eta.

        Args:
            dy: (N, C), contiguous.
            x, weight: as in ``forward``.
            scale: the loss scale.
        """
        raise NotImplementedError

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """Return the same for an x that needs no gradient; no running statistic is updated."""
        sums = self.ops.column_products(dy, x, self.rstd, self.valid, self.shift)
        dbias, sum_valid_dy, sum_dy_u = sums
        deta = None if self.shift is None else (sum_dy_u + self.shift * sum_valid_dy).sum()
        return None, sum_dy_u * self.numbers[Row.UNIT], dbias, deta


class ColumnNorm(torch.autograd.Function):
    """Compute y of a :class:`Batch`, with its backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None, batch: Batch
    ) -> Tensor:
        """Return y. x: (..., C); the others as in :meth:`Batch.forward`, in any dtype."""
        rows = as_rows(x)
        ctx.save_for_backward(rows, weight, bias, eta)
        ctx.batch = batch
        if eta is not None:
            eta = to_statistics_dtype(eta, x)
        gain, offset = to_statistics_dtype(weight, x), to_statistics_dtype(bias, x)
        return in_shape(batch.forward(rows, gain, offset, eta), x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight, bias and eta."""
        refuse_second_order()
        x, *parameters = ctx.saved_tensors
        batch, g = ctx.batch, as_rows(dy)
        if ctx.needs_input_grad[0]:
            scale: LossScale = None, 1.0
            if batch.loss_scale is not None:
                now = batch.loss_scale()
                scale = (now, 1.0) if isinstance(now, Tensor) else (None, float(now))
            dx, *gradients = batch.backward(g, x, to_statistics_dtype(parameters[0], x), scale)
            dx = dx.view(dy.shape)
        else:
            dx, *gradients = batch.backward_to_parameters(g, x)
        return (dx, *map(grad_like, gradients, parameters), None)


apply_column_norm = apply_of(ColumnNorm)


class Inference(NamedTuple):
    """The map gamma (u - mean) / root + beta + slope u, by running statistics.

    Attributes:
        root, mean: (C,); None for mean: 0.
        slope: (1,), only with a mean; None: 0.
    """

    root: Tensor
    mean: Tensor | None = None
    slope: Tensor | None = None


BatchOf = Callable[[Any, Tensor | None, Ops], Batch | Inference | None]
"""Returns what computes the next forward of a norm, given the real positions, (N,) or None, and a
backend; None if the norm has no fused form in this state."""


def fuses_columns(*classes: type[Norm]) -> Callable[[BatchOf], BatchOf]:
    """Decorator: the function returns the :class:`Batch` of these norms, not of subclasses."""

    def register(batch_of: BatchOf) -> BatchOf:
        fuses(*classes)(partial(column_norm, batch_of))
        return batch_of

    return register


def column_norm(
    batch_of: BatchOf, norm: Any, x: Tensor, valid: Tensor | None, ops: Ops
) -> Tensor | None:
    """Compute one forward of ``norm``, x and y: (..., C); None: the plain form must compute it."""
    if norm._buffers[norm.forward_updated_buffers[0]].dtype is not statistics_dtype(x):
        return None
    batch = batch_of(norm, valid, ops)
    if batch is None:
        return None
    if isinstance(batch, Inference):
        return infer(norm, x, ops, batch)
    get = norm._parameters.get
    y: Tensor = apply_column_norm(x, get("weight"), get("bias"), get("eta"), batch)
    return y


def infer(norm: Any, x: Tensor, ops: Ops, running: Inference) -> Tensor | None:
    """Compute y, (..., C), from x, (..., C), in one pass; None if a gradient is needed."""
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in (x, *norm.parameters())):
        return None
    shift = None if running.mean is None else to_statistics_dtype(running.mean, x)
    gain = to_statistics_dtype(norm.weight, x) / to_statistics_dtype(running.root, x)
    offset = to_statistics_dtype(norm.bias, x)
    if running.slope is not None and shift is not None:
        slope = to_statistics_dtype(running.slope, x)
        gain, offset = gain + slope, offset + slope * shift
    groups = getattr(norm, "layer_scale_groups", 0)
    y = ops.column_map(as_rows(x), None, shift, gain, offset, None, groups, norm.eps)
    return y.view(x.shape)


# --- by the statistics of the batch, with their exact gradient ------------------------------------


class ByBatch(Batch):
    """Compute x_hat = (u - mu_B) / sigma_B, or u / psi_B.

    Args:
        rule: which of them, and the penalty.
        running_mean, running_square: the running statistics.
        momentum: the weight of a batch in them.
        others: the arguments of :class:`Batch`.
    """

    nu: Tensor | None = None
    step = 0.0

    def __init__(
        self,
        rule: BatchRule,
        running_mean: Tensor | None,
        running_square: Tensor,
        momentum: float,
        *others: Any,
    ) -> None:
        super().__init__(*others)
        self.rule, self.running, self.momentum = rule, (running_mean, running_square), momentum

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        share = self.norm.share_of_batch(self.momentum)
        running = (None, None) if share is None else self.running
        y, numbers, self.rstd = self.ops.batch_forward(
            *(x, self.valid, weight, bias, eta, *running, share or 0.0, self.rule, self.exchange)
        )
        if self.rule.penalty:  # compared with running statistics that this batch has updated
            numbers = self.norm.compute_once_per_forward(lambda: numbers)
        self.numbers, self.with_eta = numbers, eta is not None
        if self.rule.center:
            self.shift = numbers[Row.MEAN]
        return y

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, scale: LossScale
    ) -> tuple[Tensor | None, ...]:
        return self.ops.batch_backward(
            *(dy, x, self.rstd, self.valid, self.numbers, weight, self.nu, *scale),
            *(self.step, self.with_eta, self.rule, self.exchange),
        )


def by_moments(norm: Any, rule: BatchRule, valid: Tensor | None, ops: Ops) -> ByBatch:
    """Return the passes of a norm that keeps a running mean and variance."""
    running = (norm.running_mean, norm.running_var, norm.momentum)
    return ByBatch(rule, *running, norm, valid, ops)


def by_running_moments(norm: RunningMomentsNorm, slope: Tensor | None = None) -> Inference:
    """Return gamma (u - running mean) / running deviation + beta + slope u; slope: (1,) or None."""
    return Inference((norm.running_var + norm.eps).sqrt(), norm.running_mean, slope)


@fuses_columns(BatchNorm, ReleasedBatchNorm)
def batch_norm(norm: BatchNorm, valid: Tensor | None, ops: Ops) -> Batch | Inference:
    """Return the passes that compute gamma * x_hat + beta."""
    if not norm.training:
        return by_running_moments(norm)
    released = isinstance(norm, ReleasedBatchNorm)
    rule = BatchRule(norm.layer_scale_groups, norm.eps, over_padding=released)
    return by_moments(norm, rule, valid, ops)


@fuses_columns(RegularizedBatchNorm)
def regularized_batch_norm(
    norm: RegularizedBatchNorm, valid: Tensor | None, ops: Ops
) -> Batch | Inference:
    """Return the passes that compute gamma * x_hat + beta."""
    if not norm.training:
        return by_running_moments(norm)
    strengths = (norm.penalty_per == "token", norm.lambda_mean, norm.lambda_std)
    rule = BatchRule(0, norm.eps, True, False, norm.distance, *strengths)
    batch = by_moments(norm, rule, valid, ops)
    batch.loss_scale = norm.loss_scale_later()
    return batch


@fuses_columns(RepBatchNorm)
def rep_batch_norm(norm: RepBatchNorm, valid: Tensor | None, ops: Ops) -> Batch | Inference | None:
    """Return the passes that compute gamma * x_hat + beta + eta * x; None during the blend."""
    if norm.warmup_updates:
        return None
    if not norm.training:
        return by_running_moments(norm, norm.eta)
    return by_moments(norm, BatchRule(0, norm.eps), valid, ops)


@fuses_columns(PowerNormV)
def power_norm_v(norm: PowerNormV, valid: Tensor | None, ops: Ops) -> Batch | Inference:
    """Return the passes that compute gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.psi2 + norm.eps).sqrt())
    return by_psi(norm, valid, ops)


def by_psi(norm: PowerNormV, valid: Tensor | None, ops: Ops) -> ByBatch:
    """Return the passes of PN-V, which keep a running psi^2."""
    rule = BatchRule(norm.layer_scale_groups, norm.eps, center=False)
    return ByBatch(rule, None, norm.psi2, 1 - norm.alpha_fwd, norm, valid, ops)


# --- by running statistics ------------------------------------------------------------------------


class ByRunning(Batch):
    """Compute u / psi_{t-1} with the approximate gradient of PowerNorm's Algorithm 2.

    Args:
        rule: the paper's form or the released one.
        psi2: psi_{t-1}^2, (C,).
        share: the weight of this batch in psi^2; None: it is not updated.
        others: the arguments of :class:`Batch`.
    """

    def __init__(self, rule: RunningRule, psi2: Tensor, share: float | None, *others: Any) -> None:
        super().__init__(*others)
        self.rule, self.psi2, self.share = rule, psi2, share
        self.loss_scale = self.norm.loss_scale_later()

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        running = None if self.share is None else self.norm.psi2
        y, self.numbers, self.rstd = self.ops.running_forward(
            *(x, self.valid, weight, bias, self.psi2, running, self.share or 0.0),
            *(self.rule, self.exchange),
        )
        if self.rule.released:
            self.valid = None  # the released code masks no gradient
        return y

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, scale: LossScale
    ) -> tuple[Tensor | None, ...]:
        step = 1 - self.norm.alpha_bwd
        gradients = self.ops.running_backward(
            *(dy, x, self.rstd, self.valid, self.numbers, weight, self.norm.nu, *scale),
            *(step, self.rule, self.exchange),
        )
        return *gradients, None


@fuses_columns(PowerNorm, ReleasedPowerNorm)
def power_norm(norm: PowerNorm, valid: Tensor | None, ops: Ops) -> Batch | Inference:
    """Return the passes that compute gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.psi2 + norm.eps).sqrt())
    scale = (norm.layer_scale_groups, norm.eps)
    if isinstance(norm, ReleasedPowerNorm):
        t, in_warmup, psi2 = norm.compute_once_per_forward(norm.released_state)
        rule, share = RunningRule(*scale, True, in_warmup), norm.released_share(t)
        return ByRunning(rule, psi2, share, norm, valid, ops)
    in_warmup, psi2 = norm.pre_batch_state()
    if in_warmup:
        batch = by_psi(norm, valid, ops)
        batch.nu, batch.step = norm.nu, 1 - norm.alpha_bwd
        batch.loss_scale = norm.loss_scale_later()
        return batch
    share = norm.share_of_batch(1 - norm.alpha_fwd)
    return ByRunning(RunningRule(*scale), psi2, share, norm, valid, ops)


# --- by windows over batches ----------------------------------------------------------------------


class ByWindow(Batch):
    """Compute x_hat = ratio z, z = x / root, with dL/dx = (g - psi z) / root for g = dL/dz."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        norm = self.norm
        self.loss_scale = norm.loss_scale_later()

        def updated() -> tuple[WindowRule, Tensor]:
            rule = rule_of(norm)
            window = (norm.squares, norm.squares_filled, norm.running_square)
            share = norm.effective_momentum(1 - norm.alpha_fwd)
            return rule, self.ops.window_forward(
                x, self.valid, weight, *window, share, rule, self.exchange
            )

        self.rule, self.numbers = norm.compute_once_per_forward(updated)
        gain = self.numbers[Row.GAIN]
        return self.ops.column_map(x, self.valid, None, gain, bias, bias, 0, norm.eps)

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, scale: LossScale
    ) -> tuple[Tensor | None, ...]:
        norm = self.norm
        psi, kept = (norm.psi, norm.alpha_bwd) if self.rule.geometric else (None, 1.0)
        gradients = self.ops.window_backward(
            *(dy, x, self.valid, self.numbers, weight, norm.gradients, norm.gradients_filled),
            *(psi, *scale, 1 - kept, self.rule, self.exchange),
        )
        return *gradients, None


def rule_of(norm: WindowNorm) -> WindowRule:
    """Return how a norm uses its window now."""
    if isinstance(norm, MovingAverageBatchNorm):
        return WindowRule(norm.eps, norm.in_warmup, False, limit=norm.renorm_limit)
    assert isinstance(norm, UnifiedNorm)
    return WindowRule(norm.eps, norm.in_warmup, True, outlier_skip=norm.outlier_skip)


@fuses_columns(MovingAverageBatchNorm, UnifiedNorm)
def window_norm(norm: WindowNorm, valid: Tensor | None, ops: Ops) -> Batch | Inference:
    """Return the passes that compute gamma * x_hat + beta."""
    if not norm.training:
        return Inference((norm.running_square + norm.eps).sqrt())
    return ByWindow(norm, valid, ops)
