"""What the autograd functions of all fused forms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels.passes import statistics_dtype


def refuse_second_order() -> None:
    """Raise RuntimeError in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a fused norm has no second derivative (create_graph=True). The plain form has, except "
            "powernorm after its warm-up, unified and mabn, whose backward pass is hand-written: "
            "set NORM_KERNELS=off, or call norm_plugin.kernels.set_kernels(model, 'off')"
        )


def to_statistics_dtype(parameter: Tensor, x: Tensor) -> Tensor:
    """Return a parameter or buffer, contiguous, in the dtype of statistics of ``x``."""
    dtype = statistics_dtype(x)
    if parameter.dtype is dtype and parameter.is_contiguous():
        return parameter  # saves three calls, which matter for a small norm
    return parameter.to(dtype).contiguous()


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return ``function.apply`` without the Python around it.

    That serves ``torch.func``, whose transforms have no fused forms, and costs as much as a launch.
    """
    above: Any = super(torch.autograd.Function, function)
    apply: Callable[..., Any] = above.apply
    return apply


def as_rows(x: Tensor) -> Tensor:
    """Return x, (..., C), as (N, C), contiguous.

    Within an autograd function, where views cost no node of the graph.
    """
    return x.contiguous().view(-1, x.size(-1))


def in_shape(y: Tensor, shape: torch.Size) -> Tensor:
    """Return the output y, (N, C), of an autograd function in ``shape``, and not as a view.

    What follows may change it in place, as fairseq's attention does with its queries; autograd does
    not allow that for a view from inside a function.
    """
    return y.resize_(shape)  # in place: a view of y would be one


def grad_like(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """Return a gradient in the dtype and shape of its parameter; None without a parameter."""
    if gradient is None or parameter is None:
        return None
    if gradient.dtype is not parameter.dtype:
        gradient = gradient.to(parameter.dtype)
    return gradient if gradient.shape == parameter.shape else gradient.view(parameter.shape)
