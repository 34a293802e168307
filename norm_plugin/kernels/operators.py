"""The passes of norms over channels as operators of torch, ``torch.ops.norm_plugin``.

``torch.compile`` puts an operator into its graph as one call: a fake implementation gives the
shapes, and the registered backward pass the gradients. Eager code does not call operators: one
that is written in Python adds some 20 us to a call, which is much for a small norm.

The device of x decides which backend computes, when an operator runs. Shapes are those of
``passes.py``. Callers make x and dy contiguous, and give per-channel tensors in the dtype of
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.choice import backend_of
from norm_plugin.kernels.passes import RowRule, statistics_dtype

Arguments = tuple[Any, ...]


@torch.library.custom_op("norm_plugin::row_norm", mutates_args=())
def row_norm(
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
    """y, mean and rstd of ``row_forward``; the mean is empty without ``center``."""
    rule = _rule(eps, groups, center, released, through_mean, through_rstd, phi)
    y, mean, rstd = backend_of(x).row_forward(x, weight, bias, rule)
    return y, rstd.new_empty(0) if mean is None else mean, rstd


@row_norm.register_fake
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
    """dx and the gradients of weight and bias of ``row_backward``; empty where there is none."""
    rule = _rule(eps, groups, center, released, through_mean, through_rstd, phi)
    dx, dweight, dbias = backend_of(x).row_backward(
        dy, x, mean if center else None, rstd, weight, rule
    )
    return dx, _own(dweight, rstd), _own(dbias, rstd)


@row_norm_backward.register_fake
def _(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, *rule: Any) -> Any:
    dweight = rstd.new_empty(0 if weight is None else x.size(1))
    return torch.empty_like(x), dweight, torch.empty_like(dweight if rule[2] else mean)


def _own(dparameter: Tensor | None, like: Tensor) -> Tensor:
    """A copy, since no two results of an operator may share memory; empty for None."""
    return like.new_empty(0) if dparameter is None else dparameter.clone()


def _rule(*fields: Any) -> RowRule:
    """A RowRule from its fields as a schema has them, with the phi as a list."""
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


row_norm.register_autograd(_row_gradients, setup_context=_keep_row)


@torch.library.custom_op("norm_plugin::pointwise", mutates_args=())
def pointwise(
    x: Tensor,
    slope: Tensor,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    function: str,
) -> Tensor:
    """y of ``pointwise_forward``."""
    return backend_of(x).pointwise_forward(x, function, slope, shift, weight, bias)


@pointwise.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("norm_plugin::pointwise_backward", mutates_args=())
def pointwise_backward(
    dy: Tensor, x: Tensor, slope: Tensor, shift: Tensor | None, weight: Tensor, function: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dx and the gradients of slope, shift, weight and bias of ``pointwise_backward``."""
    dx, *dparameters = backend_of(x).pointwise_backward(dy, x, function, slope, shift, weight)
    dslope, dshift, dweight, dbias = (_own(one, slope) for one in dparameters)
    return dx, dslope, dshift, dweight, dbias


@pointwise_backward.register_fake
def _(dy: Tensor, x: Tensor, slope: Tensor, shift: Any, weight: Tensor, function: str) -> Any:
    one, each = slope.new_empty(1), torch.empty_like(weight)
    return torch.empty_like(x), one, torch.empty_like(one), each, torch.empty_like(each)


def _keep_pointwise(ctx: Any, inputs: Arguments, output: Tensor) -> None:
    x, slope, shift, weight, _, ctx.function = inputs
    ctx.save_for_backward(x, slope, shift, weight)


def _pointwise_gradients(ctx: Any, dy: Tensor) -> Arguments:
    x, slope, shift, weight = ctx.saved_tensors
    dx, dslope, dshift, dweight, dbias = pointwise_backward(
        dy.contiguous(), x, slope, shift, weight, ctx.function
    )
    return dx, dslope, None if shift is None else dshift, dweight, dbias, None


pointwise.register_autograd(_pointwise_gradients, setup_context=_keep_pointwise)
