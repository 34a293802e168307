"""Norms over the positions of a batch, as few passes forward and backward.

All of them map u, the input after its layer-scale, channel by channel,

    y  = (u - shift) gain + offset           at real positions, else offset
    du = a dy + c + b (u - shift)            at real positions, else 0

and differ in where shift, gain, a, b and c come from: a subclass of :class:`Batch` says that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.fused.gradients import (
    grad_like,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.passes import Ops
from norm_plugin.norms.base.contract import AffineNorm
from norm_plugin.norms.base.workers import sum_over_workers, worker_count

Gradients = tuple[Tensor, ...]
"""Of x, (N, C), of weight and of bias, (C,) each, and of what other parameters there are."""

OfParameters = tuple[Tensor, ...]
"""The same without that of x."""


class Batch:
    """One batch on its way through a norm, and what the backward pass needs to know of it.

    Args:
        ops: the backend.
        valid: bool (N,), or None.
        groups: of the layer-scale in front; 0: none.
        eps: inside every root.
        sync: sums run over the positions of all workers.
        one_call: let the backend compute the whole norm where it can; see :class:`Ops`. Never
            with several workers, whose sums meet between the passes.
    """

    count: Tensor
    divisor: Tensor

    def __init__(
        self,
        ops: Ops,
        valid: Tensor | None,
        groups: int,
        eps: float,
        sync: bool,
        *,
        one_call: bool = False,
    ) -> None:
        self.ops, self.valid, self.groups, self.eps = ops, valid, groups, eps
        self.sync = sync and worker_count() > 1
        self.rstd: Tensor | None = None
        self.shift: Tensor | None = None
        whole = one_call and not self.sync and hasattr(ops, "batch_forward")
        self.one_call: Any = ops if whole else None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """y, (N, C). x: (N, C), contiguous; weight, bias: (C,)."""
        raise NotImplementedError

    def backward(self, dy: Tensor, x: Tensor, weight: Tensor) -> Gradients:
        """dy: (N, C), contiguous; x, weight: as in ``forward``."""
        raise NotImplementedError

    def backward_to_parameters(self, dy: Tensor, x: Tensor) -> OfParameters:
        """The same where x has no gradient: one pass, which moves no statistic of gradients."""
        every, _, with_u = self.products(dy, x)
        return with_u * self.x_hat_per_u(), every

    def x_hat_per_u(self) -> Tensor:
        """x_hat for u - shift = 1, (C,)."""
        raise NotImplementedError

    def means(self, sums: Tensor, rows: int) -> Tensor:
        """(1/n) of sums over V, (C,), of ``rows`` positions; finds n, of all workers if synced."""
        if self.valid is None:
            self.count = sums.new_full((), rows)
        else:
            self.count = self.valid.sum(dtype=sums.dtype)
        if self.sync:
            together = sum_over_workers(torch.cat([sums, self.count.unsqueeze(0)]))
            sums, self.count = together[:-1], together[-1]
        self.divisor = self.count.clamp(min=1)
        return sums / self.divisor

    def more_means(self, sums: Tensor) -> Tensor:
        """(1/n) of other sums over the same V, any shape."""
        return (sum_over_workers(sums) if self.sync else sums) / self.divisor

    def moments(self, x: Tensor, center: bool) -> tuple[Tensor, Tensor]:
        """sum_V u and the squares, (C,) each; see :class:`Ops`. Keeps the rstd."""
        total, squares, self.rstd = self.ops.column_moments(
            x, self.valid, self.groups, self.eps, center
        )
        return total, squares

    def map(
        self, x: Tensor, gain: Tensor, offset: Tensor, at_padding: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """y, (N, C), and the sums of squares, (2, C). Keeps the rstd."""
        y, self.rstd, squares = self.ops.column_map(
            x, self.rstd, self.valid, self.groups, self.eps, self.shift, gain, offset, at_padding
        )
        return y, squares

    def products(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """sum_N dy, sum_V dy and sum_V dy (u - shift), (C,) each."""
        every, real, with_u = self.ops.column_products(dy, x, self.rstd, self.valid, self.shift)
        return every, real, with_u


class ColumnNorm(torch.autograd.Function):
    """y of a :class:`Batch`, which is asked again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, batch: Batch, *others: Tensor
    ) -> Tensor:
        """x: (N, C); weight, bias: (C,); others: what else ``batch`` has gradients of."""
        x = x.contiguous()
        ctx.save_for_backward(x, weight, bias, *others)
        ctx.batch = batch
        return batch.forward(x, to_statistics_dtype(weight, x), to_statistics_dtype(bias, x))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight, bias and the others."""
        refuse_second_order()
        x, *parameters = ctx.saved_tensors
        dx, dy = None, dy.contiguous()
        if ctx.needs_input_grad[0]:
            dx, *gradients = ctx.batch.backward(dy, x, to_statistics_dtype(parameters[0], x))
        else:
            gradients = ctx.batch.backward_to_parameters(dy, x)
        dweight, dbias, *dothers = map(grad_like, gradients, parameters)
        return (dx, dweight, dbias, None, *dothers)


def column_norm(norm: AffineNorm, x: Tensor, batch: Batch, *others: Tensor) -> Tensor:
    """y, (N, C), of ``batch`` with the gain and offset of ``norm``. x: (N, C)."""
    y: Tensor = ColumnNorm.apply(x, norm.weight, norm.bias, batch, *others)
    return y


def infer(
    norm: AffineNorm,
    x: Tensor,
    ops: Ops,
    groups: int,
    eps: float,
    root: Tensor,
    mean: Tensor | None = None,
    slope: Tensor | None = None,
) -> Tensor | None:
    """gamma (u - mean) / root + beta + slope u in one pass; None if a gradient is wanted.

    Args:
        x: (N, C).
        groups: of the layer-scale in front; 0: none.
        eps: inside its root.
        root, mean: (C,), running statistics; no mean: 0.
        slope: (1,); only with a mean; None for 0.
    """
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, *norm.parameters())):
        return None
    shift = None if mean is None else to_statistics_dtype(mean, x)
    gain, offset = (
        to_statistics_dtype(norm.weight, x) / to_statistics_dtype(root, x),
        to_statistics_dtype(norm.bias, x),
    )
    if slope is not None and shift is not None:
        gain, offset = gain + slope, offset + slope * shift
    return ops.column_map(x.contiguous(), None, None, groups, eps, shift, gain, offset, None)[0]
