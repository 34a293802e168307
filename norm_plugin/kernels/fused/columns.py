"""Norms over the positions of a batch, in as few passes as possible, forward and backward.

All of them map u, the input after RMS pre-scaling, channel by channel,

    y  = (u - shift) gain + offset           at real positions, else offset
    du = a dy + c + b (u - shift)            at real positions, else 0

and differ in how shift, gain, a, b and c are obtained. A subclass of :class:`ColumnPass` computes
them: its ``forward`` also updates the running statistics, and its ``backward`` those of gradients.
A function decorated by :func:`fuses_columns` chooses the subclass for a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from norm_plugin.kernels.fused.gradients import (
    grad_like,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.base.contract import AffineNorm, Norm
from norm_plugin.norms.base.workers import sum_over_workers, worker_count

Gradients = tuple[Tensor, ...]
"""The gradients of x, (N, C), of weight and bias, (C,) each, and of any other parameters."""

ParameterGradients = tuple[Tensor, ...]
"""The gradients of weight and bias, (C,) each, and of any other parameters."""


class ColumnPass:
    """The forward and the backward pass of a norm over one batch, with the state between them.

    Args:
        norm: the norm, with its pre-scaling, eps and sync.
        valid: bool (N,), or None.
        ops: the backend.
        one_call: let the backend compute the whole norm in one call if it can; see :class:`Ops`.
            Never with several workers, whose sums are added between the passes.

            ``one_call`` is then a backend with ``batch_forward``, ``updating`` one whose calls
            update the running statistics, too; None: the backend has no such functions.

    Attributes:
        others: the parameters besides weight and bias for which ``backward`` returns gradients.
        wants_dx: whether x needs a gradient.
    """

    count: Tensor
    divisor: Tensor
    others: tuple[Tensor, ...] = ()
    wants_dx = False

    def __init__(
        self, norm: Any, valid: Tensor | None, ops: Ops, *, one_call: bool = False
    ) -> None:
        self.norm, self.valid, self.ops = norm, valid, ops
        self.groups, self.eps = getattr(norm, "layer_scale_groups", 0), norm.eps
        self.sync = norm.sync and worker_count() > 1
        self.rstd: Tensor | None = None
        self.shift: Tensor | None = None
        whole = one_call and not self.sync
        self.one_call: Any = ops if whole and hasattr(ops, "batch_forward") else None
        updates = whole and hasattr(ops, "batch_norm_forward") and _are_float32(norm)
        self.updating: Any = ops if updates else None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return y, (N, C), and update the running statistics.

        Args:
            x: (N, C), contiguous.
            weight, bias: (C,).
        """
        raise NotImplementedError

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        """Return the gradients. dy: (N, C), contiguous; x, weight: as in ``forward``."""
        raise NotImplementedError

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> ParameterGradients:
        """Return the gradients of the parameters alone, for an x that needs none.

        It takes one pass, and updates no running statistic of gradients.
        """
        every, _, with_u = self.products(dy, x)
        return with_u * self.inverse_scale(), every

    def inverse_scale(self) -> Tensor:
        """Return the factor from u - shift to x_hat, (C,)."""
        raise NotImplementedError

    def means(self, sums: Tensor, rows: int) -> Tensor:
        """Divide sums over V, (C,), by n, counted here, over all workers if synchronized."""
        if self.valid is None:
            self.count = sums.new_full((), rows)
        else:
            self.count = self.valid.sum(dtype=sums.dtype)
        if self.sync:
            together = sum_over_workers(torch.cat([sums, self.count.unsqueeze(0)]))
            sums, self.count = together[:-1], together[-1]
        self.divisor = self.count.clamp(min=1)
        return sums / self.divisor

    def means_with_known_count(self, sums: Tensor) -> Tensor:
        """Divide other sums over the same V, of any shape, by the n that :meth:`means` counted."""
        return (sum_over_workers(sums) if self.sync else sums) / self.divisor

    def moments(self, x: Tensor, center: bool) -> tuple[Tensor, Tensor]:
        """Return sum_V u and the squares, (C,) each; see :class:`Ops`. Stores the rstd."""
        total, squares, self.rstd = self.ops.column_moments(
            x, self.valid, self.groups, self.eps, center
        )
        return total, squares

    def map(
        self, x: Tensor, gain: Tensor, offset: Tensor, at_padding: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return y, (N, C), and the sums of squares, (2, C). Stores the rstd."""
        y, self.rstd, squares = self.ops.column_map(
            x, self.rstd, self.valid, self.groups, self.eps, self.shift, gain, offset, at_padding
        )
        return y, squares

    def products(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sum_N dy, sum_V dy and sum_V dy (u - shift), (C,) each."""
        every, real, with_u = self.ops.column_products(dy, x, self.rstd, self.valid, self.shift)
        return every, real, with_u


def _are_float32(norm: Any) -> bool:
    """Return whether the running statistics are float32, which kernels that update them need."""
    return norm._buffers[norm.forward_updated_buffers[0]].dtype is torch.float32


class ColumnNorm(torch.autograd.Function):
    """Compute y of a :class:`ColumnPass`, with its backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, batch: ColumnPass, *others: Tensor
    ) -> Tensor:
        """Return y. x: (N, C); weight, bias: (C,); others: further parameters of ``batch``."""
        x = x.contiguous()
        ctx.save_for_backward(x, weight, bias, *others)
        ctx.batch = batch
        return batch.forward(x, to_statistics_dtype(weight, x), to_statistics_dtype(bias, x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight, bias and the others."""
        refuse_second_order()
        x, *parameters = ctx.saved_tensors
        dx, dy = None, dy.contiguous()
        if ctx.needs_input_grad[0]:
            dx, *gradients = ctx.batch.backward(dy, x, to_statistics_dtype(parameters[0], x))
        else:
            gradients = ctx.batch.backward_to_parameters(dy, x)
        dweight, dbias, *dothers = map(grad_like, gradients, parameters)
        return (dx, dweight, dbias, None, *dothers)


class Inference(NamedTuple):
    """The map gamma (u - mean) / root + beta + slope u, by running statistics.

    Attributes:
        root, mean: (C,); None for mean: 0.
        slope: (1,), only with a mean; None: 0.
    """

    root: Tensor
    mean: Tensor | None = None
    slope: Tensor | None = None


BatchOf = Callable[[Any, Tensor | None, Ops], ColumnPass | Inference | None]
"""Returns what computes the next forward of a norm, given the real positions, (N,) or None, and a
backend; None if the norm has no fused form in this state."""


def fuses_columns(*classes: type[Norm]) -> Callable[[BatchOf], BatchOf]:
    """Decorator: the function returns the :class:`ColumnPass` of these norms, not of subclasses."""

    def register(batch_of: BatchOf) -> BatchOf:
        fuses(*classes)(partial(column_norm, batch_of))
        return batch_of

    return register


def column_norm(
    batch_of: BatchOf, norm: AffineNorm, x: Tensor, valid: Tensor | None, ops: Ops
) -> Tensor | None:
    """Compute one forward of ``norm``, x and y: (N, C); None if the plain form must compute it."""
    batch = batch_of(norm, valid, ops)
    if batch is None:
        return None
    if isinstance(batch, Inference):
        return infer(norm, x, ops, batch)
    batch.wants_dx = torch.is_grad_enabled() and x.requires_grad
    y: Tensor = ColumnNorm.apply(x, norm.weight, norm.bias, batch, *batch.others)
    return y


def infer(norm: Any, x: Tensor, ops: Ops, running: Inference) -> Tensor | None:
    """Compute y, (N, C), from x, (N, C), in one pass; None if a gradient is needed."""
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in (x, *norm.parameters())):
        return None
    shift = None if running.mean is None else to_statistics_dtype(running.mean, x)
    gain = to_statistics_dtype(norm.weight, x) / to_statistics_dtype(running.root, x)
    offset = to_statistics_dtype(norm.bias, x)
    if running.slope is not None and shift is not None:
        slope = to_statistics_dtype(running.slope, x)
        gain, offset = gain + slope, offset + slope * shift
    groups = getattr(norm, "layer_scale_groups", 0)
    x = x.contiguous()
    return ops.column_map(x, None, None, groups, norm.eps, shift, gain, offset, None)[0]
