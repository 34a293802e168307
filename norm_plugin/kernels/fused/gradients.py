"""What the backward passes of all fused forms share, and their operators.

A pass over channels or over single numbers is also an operator of torch, in
``torch.ops.norm_plugin``. ``torch.compile`` puts it into its graph as one call: a fake
implementation gives the shapes, and the registered backward pass the gradients. Eager code does not
call operators: one that is written in Python adds some 20 us to a call, which is much for a small
norm. The device of x decides which backend computes, when an operator runs. Callers make x and dy
contiguous, and give per-channel tensors in the dtype of statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.passes import statistics_dtype

Arguments = tuple[Any, ...]


def refuse_second_order() -> None:
    """Raise RuntimeError in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a fused norm has no second derivative (create_graph=True); the plain form has, unless "
            "its backward pass is written by hand (powernorm after its warm-up, unified, mabn): "
            "set NORM_KERNELS=off, or call norm_plugin.kernels.set_kernels(model, 'off')"
        )


def to_statistics_dtype(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter or buffer, contiguous, in the dtype that statistics of ``x`` are in."""
    dtype = statistics_dtype(x)
    if parameter.dtype is dtype and parameter.is_contiguous():
        return parameter  # three calls less, which a small norm notices
    return parameter.to(dtype).contiguous()


def grad_like(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """A gradient as the parameter's dtype and shape demand; None for no parameter."""
    if gradient is None or parameter is None:
        return None
    gradient = gradient.to(parameter.dtype)
    return gradient if gradient.shape == parameter.shape else gradient.view(parameter.shape)


def own_copy(dparameter: Tensor | None, like: Tensor) -> Tensor:
    """A copy, since no two results of an operator may share memory; empty for None."""
    return like.new_empty(0) if dparameter is None else dparameter.clone()
