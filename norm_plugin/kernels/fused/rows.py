"""Norms over the channels of one position, in one pass forward and one backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.choice import backend_of
from norm_plugin.kernels.fused.gradients import (
    Arguments,
    apply_of,
    as_rows,
    grad_like,
    own_copy,
    refuse_second_order,
    to_statistics_dtype,
)
from norm_plugin.kernels.fused_forms import fuses
from norm_plugin.kernels.passes import Ops, RowRule, statistics_dtype
from norm_plugin.norms.ada_norm import AdaNorm
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
        return y.view(x.shape)

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
    if torch.compiler.is_compiling():
        return _as_operator(x, weight, bias, rule)
    y: Tensor = apply_row_norm(x, weight, bias, rule, ops)
    return y


def _as_operator(x: Tensor, weight: Tensor | None, bias: Tensor | None, rule: RowRule) -> Tensor:
    """Compute the norm as one operator in the graph of ``torch.compile``."""
    gain, offset = (
        None if parameter is None else to_statistics_dtype(parameter, x)
        for parameter in (weight, bias)
    )
    phi = None if rule.phi is None else list(rule.phi)
    rows = x.reshape(-1, x.size(-1)).contiguous()
    y: Tensor = row_norm_operator(rows, gain, offset, *rule[:-1], phi)[0]
    return y.view(x.shape)


# --- in the graph of torch.compile; see gradients.py ---------------------------------------------


@torch.library.custom_op("norm_plugin::row_norm", mutates_args=())
def row_norm_operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    groups: int,
    center: bool,
    released: bool,
    through_mean: bool,
    through_rstd: bool,
    phi: Sequence[float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and rstd of ``row_forward``; the mean is empty without ``center``."""
    rule = _rule(eps, groups, center, released, through_mean, through_rstd, phi)
    y, mean, rstd = backend_of(x).row_forward(x, weight, bias, rule)
    return y, rstd.new_empty(0) if mean is None else mean, rstd


@row_norm_operator.register_fake
def _(x: Tensor, weight: Any, bias: Any, eps: float, groups: int, center: bool, *_: Any) -> Any:
    rstd = x.new_empty((x.size(0), groups), dtype=statistics_dtype(x))
    return torch.empty_like(x), torch.empty_like(rstd) if center else rstd.new_empty(0), rstd


@torch.library.custom_op("norm_plugin::row_norm_backward", mutates_args=())
def row_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    eps: float,
    groups: int,
    center: bool,
    released: bool,
    through_mean: bool,
    through_rstd: bool,
    phi: Sequence[float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx and the gradients of weight and bias; empty for parameters that are None."""
    rule = _rule(eps, groups, center, released, through_mean, through_rstd, phi)
    dx, dweight, dbias = backend_of(x).row_backward(
        dy, x, mean if center else None, rstd, weight, rule
    )
    return dx, own_copy(dweight, rstd), own_copy(dbias, rstd)


@row_norm_backward.register_fake
def _(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, *rule: Any) -> Any:
    dweight = rstd.new_empty(0 if weight is None else x.size(1))
    return torch.empty_like(x), dweight, torch.empty_like(dweight if rule[2] else mean)


def _rule(*fields: Any) -> RowRule:
    """Return a RowRule from the fields of an operator's schema, which has phi as a list."""
    *others, phi = fields
    return RowRule._make([*others, None if phi is None else (phi[0], phi[1])])


def _keep_row(ctx: Any, inputs: Arguments, output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, *ctx.rule = inputs
    _, mean, rstd = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)


def _row_gradients(ctx: Any, dy: Tensor, *_: Any) -> Arguments:
    x, weight, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = row_norm_backward(dy.contiguous(), x, mean, rstd, weight, *ctx.rule)
    gradients = (dx, None if weight is None else dweight, dbias if ctx.has_bias else None)
    return (*gradients, *(None for _ in ctx.rule))


row_norm_operator.register_autograd(_row_gradients, setup_context=_keep_row)


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


@fuses(AdaNorm)
def ada_norm(norm: AdaNorm, x: Tensor, valid: Tensor | None, ops: Ops) -> Tensor:
    """Return sg[C (1 - k z)] z."""
    rule = RowRule(norm.eps, released=norm.variant == "released", phi=(norm.scale, norm.k))
    return row_norm(x, ops, rule)
