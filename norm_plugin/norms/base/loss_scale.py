"""The factor that a loss is multiplied with before its backward pass, as mixed precision does.

Every gradient of that pass has the factor. A norm that keeps statistics of gradients, or adds a
penalty to the loss, has to know it. Outside fairseq, whose trainer reports it, it is seen where
``torch.amp.GradScaler.scale`` multiplies the loss: what that method returns gets a hook, which
notes the factor when the backward pass begins. So a loss that was not scaled has the factor 1,
and a scale that changes between steps is the one that the loss was multiplied with.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

MARK = "seen_by_the_norms"


class ScaledPass:
    """A backward pass of a scaled loss. It is held by torch alone, which drops it with the pass.

    Attributes:
        factor: what the loss was multiplied with, ().
    """

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def __call__(self) -> None:
        """Called by torch at the end of the pass, until which torch holds it."""


_PASSES: weakref.WeakValueDictionary[int, ScaledPass] = weakref.WeakValueDictionary()
"""The backward passes that are running, by the number that torch gives each."""


def observe_scalers() -> None:
    """Let ``scale`` of every class of GradScaler mark the losses that it multiplies, once each."""
    for cls in _with_subclasses(GradScaler):
        scale = vars(cls).get("scale")
        if scale is not None and not hasattr(scale, MARK):
            setattr(cls, "scale", _marking(scale))  # noqa: B010  mypy knows methods as constants


def _with_subclasses(cls: type[GradScaler]) -> Iterator[type[GradScaler]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)


def _marking(scale: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(scale)
    def wrapper(scaler: Any, outputs: Any) -> Any:
        def mark(scaled: Any) -> Any:
            if not isinstance(scaled, Tensor):
                each = map(mark, scaled)
                return type(scaled)(each) if isinstance(scaled, (list, tuple)) else each
            if scaled.requires_grad:
                factor = scale(scaler, torch.ones((), device=scaled.device))
                scaled.register_hook(functools.partial(_begin_pass, factor))
            return scaled

        return mark(scale(scaler, outputs))

    setattr(wrapper, MARK, True)
    return wrapper


def _begin_pass(factor: Tensor, gradient: Tensor) -> None:
    """A backward pass has reached a scaled loss. Of several losses in one pass the first counts."""
    number = torch._C._current_graph_task_id()
    if number not in _PASSES:
        _PASSES[number] = running = ScaledPass(factor)
        torch.autograd.Variable._execution_engine.queue_callback(running)


def observed_loss_scale() -> Tensor | None:
    """The factor, (), in the gradients of the backward pass that is running; None: none was seen.

    Activation checkpointing runs passes inside a pass. They have later numbers, and its factor.
    """
    number = torch._C._current_graph_task_id()
    begun = [known for known in _PASSES if known <= number]
    running = _PASSES.get(max(begun)) if begun else None
    return None if running is None else running.factor


def trains_in_float16(parameter: Tensor) -> bool:
    """Whether a forward that runs now computes in float16, by ``parameter`` or by autocast."""
    device = parameter.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device) == torch.float16
    return parameter.dtype == torch.float16
