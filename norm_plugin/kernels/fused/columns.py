"""Norms over the positions of a batch, in as few passes as possible, forward and backward.

All of them map u, the input after RMS pre-scaling, channel by channel,

    y  = (u - shift) gain + offset           at real positions, else offset
    du = a dy + c + b (u - shift)            at real positions, else 0

and differ in how shift, gain, a, b and c are obtained: by the statistics of the batch, by running
ones, or by a window of batches. A backend computes them, and updates the running statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from norm_plugin.kernels.fused.function import Gradients, Passes, fused_norm, in_statistics_dtype
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
from norm_plugin.norms.base.workers import gathered_rows, worker_count
from norm_plugin.norms.batch_norm import BatchNorm, ReleasedBatchNorm
from norm_plugin.norms.mabn import MovingAverageBatchNorm
from norm_plugin.norms.power_norm import PowerNorm
from norm_plugin.norms.power_norm_released import ReleasedPowerNorm
from norm_plugin.norms.power_norm_v import PowerNormV
from norm_plugin.norms.regularized_batch_norm import RegularizedBatchNorm
from norm_plugin.norms.rep_batch_norm import RepBatchNorm
from norm_plugin.norms.unified_norm import UnifiedNorm


class Batch(Passes):
    """The passes of a norm over one batch; its parameters are weight, bias, (C,), and eta, (1,).

    Args:
        norm: the norm, in training.
        valid: bool (...), or None.
        ops: the backend.
        rule: what the norm computes.
        share: the weight of this batch in the running statistics; None: they are not updated.

    Attributes:
        numbers: (9, C), the rows of ``passes.Row``.
        eta: the parameter; None: the norm has none.
        x_edge: the node of the graph that gets dx; None: there is none.
    """

    numbers: Tensor
    x_edge: Any = None
    eta: Tensor | None = None
    rstd: Tensor | None = None
    loss_scale: Callable[[], float | Tensor] | None = None

    def __init__(
        self, norm: Any, valid: Tensor | None, ops: Ops, rule: Any, share: float | None = None
    ) -> None:
        self.norm, self.valid, self.ops, self.rule, self.share = norm, valid, ops, rule, share
        self.exchange: Exchange = None
        if worker_count(norm.sync) > 1:
            self.exchange = partial(gathered_rows, dim=0, sync=norm.sync)

    def mutable(self, statistic: Tensor) -> Tensor:
        """Return a statistic of gradients to be updated in place, or a copy if it must not change.

        A backward pass without dx, as ``autograd.grad(y, parameters)``, must not change it: the
        plain form does not there.
        """
        return statistic if self.x_edge is None or gets_gradient(self.x_edge) else statistic.clone()

    def scale(self, x: Tensor) -> Tensor:
        """Return the loss scale, ()."""
        now = 1.0 if self.loss_scale is None else self.loss_scale()
        return now if isinstance(now, Tensor) else constant(now, statistics_dtype(x), x.device)


def gets_gradient(node: Any) -> bool:
    """Return whether the running backward pass computes the gradient for ``node``."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except (
        RuntimeError
    ):  # it does not answer for leaves, where autograd.grad asks for their gradient
        return True


@functools.lru_cache(maxsize=16)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number as a tensor, (), which makes no new key of repeated launches."""
    return torch.tensor(value, dtype=dtype, device=device)


MakeBatch = Callable[[Any, Tensor | None, Ops], Batch | None]
"""Returns the passes of the next training forward of a norm, given the real positions, (...) or
None, and a backend; None if the norm has no fused form in this state."""
Made = TypeVar("Made", bound=MakeBatch)


def fuses_columns(*classes: type[Norm]) -> Callable[[Made], Made]:
    """Decorator: the function returns the :class:`Batch` of these norms, not of subclasses."""

    def register(make_batch: Made) -> Made:
        fuses(*classes)(partial(column_norm, make_batch))
        return make_batch

    return register


def column_norm(
    make_batch: MakeBatch, norm: Any, x: Tensor, valid: Tensor | None, ops: Ops
) -> Tensor | None:
    """Compute one forward of ``norm``, x and y: (..., C); None: the plain form must compute it."""
    if norm._buffers[norm.forward_updated_buffers[0]].dtype is not statistics_dtype(x):
        return None
    if not norm.training:
        return infer(norm, x, ops)
    no_dx = not x.requires_grad and torch.is_grad_enabled()
    if no_dx and any(leaf.requires_grad for leaf in norm.parameters()):
        return None  # a backward pass without dx updates no statistic of gradients
    batch = make_batch(norm, valid, ops)
    if batch is None:
        return None
    if x.requires_grad and torch.is_grad_enabled() and not norm.exact_gradient:
        batch.x_edge = x.grad_fn or get_gradient_edge(x).node
    return fused_norm(
        batch, x, affine_parameter(norm, "weight"), affine_parameter(norm, "bias"), batch.eta
    )


def affine_parameter(norm: Any, name: str) -> Tensor:
    """Return ``norm.weight`` or ``norm.bias``, which costs as much as a launch by nn.Module's own
    lookup; it is no parameter where torch's pruning, parametrizations or FSDP replace it."""
    parameter = norm._parameters.get(name)
    found: Tensor = getattr(norm, name) if parameter is None else parameter
    return found


def infer(norm: Any, x: Tensor, ops: Ops) -> Tensor | None:
    """Compute y = gamma (u - mean) / root + beta + eta u, (..., C), by running statistics, in one
    pass; None if a gradient is needed, or if LayerNorm is blended in."""
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in (x, *norm.parameters())):
        return None
    if isinstance(norm, RepBatchNorm) and norm.warmup_updates:
        return None
    running = {kind: norm.get_buffer(name) for kind, name in norm.running_buffers.items()}
    square = running["square" if "square" in running else "variance"]
    by_channel = (norm.weight, norm.bias, (square + norm.eps).sqrt(), running.get("mean"))
    given = (*by_channel, getattr(norm, "eta", None))
    weight, offset, root, shift, slope = in_statistics_dtype(given, x)
    gain = weight / root
    if slope is not None:
        gain, offset = gain + slope, offset + slope * shift
    groups = getattr(norm, "layer_scale_groups", 0)
    y: Tensor = ops.column_map(x.contiguous(), None, shift, gain, offset, None, groups, norm.eps)
    return y


# --- by the statistics of the batch, with their exact gradient ------------------------------------


class ByBatch(Batch):
    """Compute x_hat = (u - mu_B) / sigma_B, or u / psi_B; ``rule`` says which, and the penalty.

    Attributes:
        running: the running statistics.
        nu, step: of a norm that updates nu, and 1 - a_b.
    """

    running: tuple[Tensor | None, Tensor]
    nu: Tensor | None = None
    step = 0.0

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        running = (None, None) if self.share is None else self.running
        y, numbers, self.rstd = self.ops.batch_forward(
            *(x, self.valid, weight, bias, eta, *running),
            *(self.share or 0.0, self.rule, self.exchange),
        )
        if self.rule.penalty:  # compared with running statistics that this batch has updated
            numbers = self.norm.compute_once_per_forward(lambda: numbers)
        self.numbers = numbers
        return y

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None
    ) -> Gradients:
        nu = None if self.nu is None else self.mutable(self.nu)
        gradients: Gradients = self.ops.batch_backward(
            *(dy, x, self.rstd, self.valid, self.numbers, weight, nu, self.scale(x)),
            *(self.step, eta is not None, self.rule, self.exchange),
        )
        return gradients


class WithPenalty(ByBatch):
    """The passes of a norm whose loss has a penalty.

    Attributes:
        term: the weight of the loss of one position in the loss, a number or ().
    """

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: Tensor | None) -> Tensor:
        y = super().forward(x, weight, bias, eta)
        self.term: float | Tensor = self.norm.term_weight(self.numbers[Row.COUNT, 0])
        return y

    def scale(self, x: Tensor) -> Tensor:
        """Return the loss scale times ``term``, ()."""
        scale = super().scale(x)
        return self.term * scale if isinstance(self.term, Tensor) else scale


def by_moments(
    norm: Any, rule: BatchRule, valid: Tensor | None, ops: Ops, passes: type[ByBatch] = ByBatch
) -> ByBatch:
    """Return the passes of a norm that keeps a running mean and variance."""
    batch = passes(norm, valid, ops, rule, norm.share_of_batch(norm.momentum))
    buffers = norm._buffers  # what nn.Module does for norm.running_mean costs as much as a launch
    batch.running = buffers["running_mean"], buffers["running_var"]
    return batch


@fuses_columns(BatchNorm, ReleasedBatchNorm)
def batch_norm(norm: BatchNorm, valid: Tensor | None, ops: Ops) -> Batch:
    """Return the passes that compute gamma * x_hat + beta."""
    released = isinstance(norm, ReleasedBatchNorm)
    rule = BatchRule(norm.layer_scale_groups, norm.eps, over_padding=released)
    return by_moments(norm, rule, valid, ops)


@fuses_columns(RegularizedBatchNorm)
def regularized_batch_norm(norm: RegularizedBatchNorm, valid: Tensor | None, ops: Ops) -> Batch:
    """Return the passes that compute gamma * x_hat + beta."""
    strengths = (norm.penalty_per == "token", norm.lambda_mean, norm.lambda_std)
    rule = BatchRule(0, norm.eps, True, False, norm.distance, *strengths)
    batch = by_moments(norm, rule, valid, ops, WithPenalty)
    batch.loss_scale = norm.loss_scale_later()
    return batch


@fuses_columns(RepBatchNorm)
def rep_batch_norm(norm: RepBatchNorm, valid: Tensor | None, ops: Ops) -> Batch | None:
    """Return the passes that compute gamma * x_hat + beta + eta * x; None during the blend."""
    if norm.warmup_updates:
        return None
    batch = by_moments(norm, BatchRule(0, norm.eps), valid, ops)
    batch.eta = norm.eta
    return batch


@fuses_columns(PowerNormV)
def by_psi(norm: PowerNormV, valid: Tensor | None, ops: Ops) -> ByBatch:
    """Return the passes of PN-V, which compute gamma * x_hat + beta and keep a running psi^2."""
    rule = BatchRule(norm.layer_scale_groups, norm.eps, center=False)
    batch = ByBatch(norm, valid, ops, rule, norm.share_of_batch(1 - norm.alpha_fwd))
    batch.running = None, norm.psi2
    return batch


# --- by running statistics ------------------------------------------------------------------------


class ByRunning(Batch):
    """Compute u / psi_{t-1} with the approximate gradient of PowerNorm's Algorithm 2.

    ``rule`` says whether by the paper or as released.

    Attributes:
        psi2: psi_{t-1}^2, (C,).
    """

    psi2: Tensor

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: None) -> Tensor:
        running = None if self.share is None else self.norm.psi2
        y, self.numbers, self.rstd = self.ops.running_forward(
            *(x, self.valid, weight, bias, self.psi2, running),
            *(self.share or 0.0, self.rule, self.exchange),
        )
        if self.rule.released:
            self.valid = None  # the released code masks no gradient
        return y

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eta: None) -> Gradients:
        step, nu = 1 - self.norm.alpha_bwd, self.mutable(self.norm.nu)
        gradients = self.ops.running_backward(
            *(dy, x, self.rstd, self.valid, self.numbers, weight, nu, self.scale(x)),
            *(step, self.rule, self.exchange),
        )
        return *gradients, None


@fuses_columns(PowerNorm, ReleasedPowerNorm)
def power_norm(norm: PowerNorm, valid: Tensor | None, ops: Ops) -> Batch:
    """Return the passes that compute gamma * x_hat + beta."""
    scale = (norm.layer_scale_groups, norm.eps)
    batch: ByBatch | ByRunning
    t, in_warmup, psi2 = norm.pre_batch_state()
    if isinstance(norm, ReleasedPowerNorm):
        rule = RunningRule(*scale, True, in_warmup)
        batch = ByRunning(norm, valid, ops, rule, norm.released_share(t))
        batch.psi2 = psi2
    elif in_warmup:
        batch = by_psi(norm, valid, ops)
        batch.nu, batch.step = norm.nu, 1 - norm.alpha_bwd
    else:
        share = norm.share_of_batch(1 - norm.alpha_fwd)
        batch = ByRunning(norm, valid, ops, RunningRule(*scale), share)
        batch.psi2 = psi2
    batch.loss_scale = norm.loss_scale_later()
    return batch


# --- by windows over batches ----------------------------------------------------------------------


class ByWindow(Batch):
    """Compute x_hat = ratio z, z = x / root, with dL/dx = (g - psi z) / root for g = dL/dz."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, eta: None) -> Tensor:
        norm = self.norm
        window = (norm.squares, norm.squares_filled, norm.running_square)
        # With the rule, since a recomputed forward must use that of the first one
        self.rule, self.numbers = norm.compute_once_per_forward(
            lambda: (
                self.rule,
                self.ops.window_forward(
                    x, self.valid, weight, *window, self.share, self.rule, self.exchange
                ),
            )
        )
        gain = self.numbers[Row.GAIN]
        y: Tensor = self.ops.column_map(x, self.valid, None, gain, bias, bias, 0, norm.eps)
        return y

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eta: None) -> Gradients:
        norm = self.norm
        psi, kept = (self.mutable(norm.psi), norm.alpha_bwd) if self.rule.geometric else (None, 1.0)
        window = self.mutable(norm.gradients), self.mutable(norm.gradients_filled)
        gradients = self.ops.window_backward(
            *(dy, x, self.valid, self.numbers, weight, *window),
            *(psi, self.scale(x), 1 - kept, self.rule, self.exchange),
        )
        return *gradients, None


@fuses_columns(MovingAverageBatchNorm, UnifiedNorm)
def window_norm(
    norm: MovingAverageBatchNorm | UnifiedNorm, valid: Tensor | None, ops: Ops
) -> Batch:
    """Return the passes of MABN or UN, by windows over batches: gamma * x_hat + beta."""
    if isinstance(norm, MovingAverageBatchNorm):
        rule = WindowRule(norm.eps, norm.in_warmup, False, limit=norm.renorm_limit)
    else:
        rule = WindowRule(norm.eps, norm.in_warmup, True, outlier_skip=norm.outlier_skip)
    batch = ByWindow(norm, valid, ops, rule, norm.effective_momentum(1 - norm.alpha_fwd))
    batch.loss_scale = norm.loss_scale_later()
    return batch
