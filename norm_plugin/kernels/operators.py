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
    centre: bool,
    released: bool,
    through_mean: bool,
    through_rate: bool,
    bend: Sequence[float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean and rate of ``row_forward``; the mean is empty without ``centre``."""
    rule = _rule(eps, groups, centre, released, through_mean, through_rate, bend)
    y, mean, rate = backend_of(x).row_forward(x, weight, bias, rule)
    return y, rate.new_empty(0) if mean is None else mean, rate


@row_norm.register_fake
def _(x: Tensor, weight: Any, bias: Any, eps: float, groups: int, centre: bool, *_: Any) -> Any:
    rate = x.new_empty((x.size(0), groups), dtype=statistics_dtype(x))
    return torch.empty_like(x), torch.empty_like(rate) if centre else rate.new_empty(0), rate


@torch.library.custom_op("norm_plugin::row_norm_backward", mutates_args=())
def row_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rate: Tensor,
    weight: Tensor | None,
    eps: float,
    groups: int,
    centre: bool,
    released: bool,
    through_mean: bool,
    through_rate: bool,
    bend: Sequence[float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx and the gradients of weight and bias of ``row_backward``; empty where there is none."""
    rule = _rule(eps, groups, centre, released, through_mean, through_rate, bend)
    dx, of_weight, of_bias = backend_of(x).row_backward(
        dy, x, mean if centre else None, rate, weight, rule
    )
    return dx, _own(of_weight, rate), _own(of_bias, rate)


@row_norm_backward.register_fake
def _(dy: Tensor, x: Tensor, mean: Tensor, rate: Tensor, weight: Any, *rule: Any) -> Any:
    of_weight = rate.new_empty(0 if weight is None else x.size(1))
    return torch.empty_like(x), of_weight, torch.empty_like(of_weight if rule[2] else mean)


def _own(of_parameter: Tensor | None, like: Tensor) -> Tensor:
    """A copy, since no two results of an operator may share memory; empty for None."""
    return like.new_empty(0) if of_parameter is None else of_parameter.clone()


def _rule(*fields: Any) -> RowRule:
    """A RowRule from its fields as a schema has them, with the bend as a list."""
    *others, bend = fields
    return RowRule._make([*others, None if bend is None else (bend[0], bend[1])])


def _keep_row(ctx: Any, inputs: Arguments, output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, *ctx.rule = inputs
    _, mean, rate = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, mean, rate)
    ctx.mark_non_differentiable(mean, rate)


def _row_gradients(ctx: Any, dy: Tensor, *_: Any) -> Arguments:
    x, weight, mean, rate = ctx.saved_tensors
    dx, of_weight, of_bias = row_norm_backward(dy.contiguous(), x, mean, rate, weight, *ctx.rule)
    gradients = (dx, None if weight is None else of_weight, of_bias if ctx.has_bias else None)
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
    dx, *of_parameters = backend_of(x).pointwise_backward(dy, x, function, slope, shift, weight)
    of_slope, of_shift, of_weight, of_bias = (_own(one, slope) for one in of_parameters)
    return dx, of_slope, of_shift, of_weight, of_bias


@pointwise_backward.register_fake
def _(dy: Tensor, x: Tensor, slope: Tensor, shift: Any, weight: Tensor, function: str) -> Any:
    one, each = slope.new_empty(1), torch.empty_like(weight)
    return torch.empty_like(x), one, torch.empty_like(one), each, torch.empty_like(each)


def _keep_pointwise(ctx: Any, inputs: Arguments, output: Tensor) -> None:
    x, slope, shift, weight, _, ctx.function = inputs
    ctx.save_for_backward(x, slope, shift, weight)


def _pointwise_gradients(ctx: Any, dy: Tensor) -> Arguments:
    x, slope, shift, weight = ctx.saved_tensors
    dx, of_slope, of_shift, of_weight, of_bias = pointwise_backward(
        dy.contiguous(), x, slope, shift, weight, ctx.function
    )
    return dx, of_slope, None if shift is None else of_shift, of_weight, of_bias, None


pointwise.register_autograd(_pointwise_gradients, setup_context=_keep_pointwise)
