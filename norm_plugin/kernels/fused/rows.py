"""Norms over the channels of one position, in one pass forward and one backward."""

from __future__ import annotations

import math
from typing import Any

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
from norm_plugin.kernels.passes import Ops, RowRule, statistics_dtype
from norm_plugin.norms.ada_norm import AdaNorm, ReleasedAdaNorm
from norm_plugin.norms.detach_norm import DetachNorm, DetachNormMean, DetachNormStd
from norm_plugin.norms.group_norm import GroupNorm
from norm_plugin.norms.layer_norm import LayerNormSimple
from norm_plugin.norms.rms_norm import RMSNorm
from norm_plugin.norms.scale_norm import ScaleNorm


class RowNorm(torch.autograd.Function):
    """Compute y of a :class:`RowRule`; the backward pass standardizes the saved input again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        rule: RowRule,
        ops: Ops,
    ) -> Tensor:
        """Return y. x: (..., C); weight, bias: (C,) or None."""
        rows = as_rows(x)
        gain = None if weight is None else to_statistics_dtype(weight, x)
        y, mean, rstd = ops.row_forward(
            rows, gain, None if bias is None else to_statistics_dtype(bias, x), rule
        )
        ctx.save_for_backward(rows, mean, rstd, weight, bias)
        ctx.rule, ctx.ops = rule, ops
        return in_shape(y, x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        refuse_second_order()
        x, mean, rstd, weight, bias = ctx.saved_tensors
        gain = None if weight is None else to_statistics_dtype(weight, x)
        dx, dweight, dbias = ctx.ops.row_backward(as_rows(dy), x, mean, rstd, gain, ctx.rule)
        dparameters = grad_like(dweight, weight), grad_like(dbias, bias)
        return dx.view(dy.shape), *dparameters, None, None


apply_row_norm = apply_of(RowNorm)


def row_norm(
    x: Tensor,
    ops: Ops,
    rule: RowRule,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return y of ``rule``, with its gradients. x, y: (..., C); weight, bias: (C,) or None.

    Raises:
        ValueError: a bias is given without a mean, for which no backend sums the gradient.
    """
    if bias is not None and not rule.center:
        raise ValueError("bias is given, but a row norm without a mean takes none: pass None")
    y: Tensor = apply_row_norm(x, weight, bias, rule, ops)
    return y


# --- the norms ----------------------------------------------------------------------------------


@fuses(LayerNormSimple)
def layer_norm_simple(norm: LayerNormSimple, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return (x - mu) / sigma. ``layernorm`` itself uses torch's own kernel."""
    return row_norm(x, ops, RowRule(norm.eps))


@fuses(DetachNorm, DetachNormMean, DetachNormStd)
def detach_norm(norm: DetachNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return (x - mu) / sigma."""
    rule = RowRule(norm.eps, through_mean=not norm.detach_mean, through_rstd=not norm.detach_std)
    return row_norm(x, ops, rule)


@fuses(RMSNorm)
def rms_norm(norm: RMSNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * x / rms."""
    return row_norm(x, ops, RowRule(norm.eps, center=False), norm.gain())


@fuses(ScaleNorm)
def scale_norm(norm: ScaleNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return g x / sqrt(sum x^2 + eps) = (g / sqrt(C)) x / sqrt(mean x^2 + eps / C)."""
    g = norm.g.to(statistics_dtype(x))
    gain = (g / math.sqrt(norm.dim)).expand(norm.dim)  # autograd sums its gradient
    return row_norm(x, ops, RowRule(norm.eps / norm.dim, center=False), gain)


@fuses(GroupNorm)
def group_norm(norm: GroupNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return gamma * (x - mu_i) / sigma_i + beta."""
    return row_norm(x, ops, RowRule(norm.eps, groups=norm.groups), norm.weight, norm.bias)


@fuses(AdaNorm, ReleasedAdaNorm)
def ada_norm(norm: AdaNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return sg[C (1 - k z)] z."""
    rule = RowRule(norm.eps, released=isinstance(norm, ReleasedAdaNorm), phi=(norm.scale, norm.k))
    return row_norm(x, ops, rule)
