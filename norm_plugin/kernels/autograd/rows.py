"""Norms over the channels of one position, as one pass forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels import operators
from norm_plugin.kernels.autograd.gradients import (
    grad_like,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.passes import Ops, RowRule


class RowNorm(torch.autograd.Function):
    """y of a :class:`RowRule`; the backward pass standardizes its saved input once more."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rule: RowRule,
        ops: Ops,
    ) -> Tensor:
        """x: (N, C); weight, bias: (C,) or None."""
        x = x.contiguous()
        gain = None if weight is None else to_statistics_dtype(weight, x)
        y, mean, rstd = ops.row_forward(
            x, gain, None if bias is None else to_statistics_dtype(bias, x), rule
        )
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        ctx.rule, ctx.ops = rule, ops
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias."""
        refuse_second_order()
        x, mean, rstd, weight, bias = ctx.saved_tensors
        gain = None if weight is None else to_statistics_dtype(weight, x)
        dx, dweight, dbias = ctx.ops.row_backward(dy.contiguous(), x, mean, rstd, gain, ctx.rule)
        return dx, grad_like(dweight, weight), grad_like(dbias, bias), None, None


def row_norm(
    x: Tensor,
    ops: Ops,
    rule: RowRule,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """y of ``rule``, (N, C), with its gradients. x: (N, C); weight, bias: (C,) or None.

    Raises:
        ValueError: a bias without a mean, whose gradient no backend sums.
    """
    if bias is not None and not rule.center:
        raise ValueError("a row norm without a mean takes no bias: give it None")
    if torch.compiler.is_compiling():
        return _as_operator(x, weight, bias, rule)
    y: Tensor = RowNorm.apply(x, weight, bias, rule, ops)
    return y


def _as_operator(x: Tensor, weight: Tensor | None, bias: Tensor | None, rule: RowRule) -> Tensor:
    """The same as one call in the graph of ``torch.compile``."""
    gain, offset = (None if one is None else to_statistics_dtype(one, x) for one in (weight, bias))
    phi = None if rule.phi is None else list(rule.phi)
    y: Tensor = operators.row_norm(x.contiguous(), gain, offset, *rule[:-1], phi)[0]
    return y
