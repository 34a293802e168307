"""The factor by which mixed precision multiplies a loss before its backward pass.

Every gradient of that pass has the factor. A norm that keeps statistics of gradients, or adds a
penalty to the loss, needs to know it. Under fairseq the trainer reports it. Elsewhere it is
observed at ``torch.amp.GradScaler.scale``: a hook on the loss that this method returns records the
factor when the backward pass begins. So the factor of a loss that was not scaled is 1, and if the
scale changes between steps, the factor is the one that the loss was multiplied by.
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
    """A backward pass of a scaled loss. Only torch references it, and drops it after the pass.

    Attributes:
        factor: (), the factor that the loss was multiplied by.
    """

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def __call__(self) -> None:
        """Do nothing; torch calls this at the end of the pass and holds the object until then."""


_PASSES: weakref.WeakValueDictionary[int, ScaledPass] = weakref.WeakValueDictionary()
"""The running backward passes, by the id that torch gives each."""


@functools.cache
def observe_scalers() -> None:
    """Patch ``scale`` of GradScaler and its subclasses, once each, to mark the losses it scales."""
    for cls in _with_subclasses(GradScaler):
        _observe(cls)
    # mypy knows methods as constants
    setattr(GradScaler, "__init_subclass__", classmethod(_observe))  # noqa: B010


def _observe(cls: type[GradScaler]) -> None:
    scale = vars(cls).get("scale")
    if scale is not None and not hasattr(scale, MARK):
        setattr(cls, "scale", _marking(scale))  # noqa: B010


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
    """Record that a backward pass reached a scaled loss. Of several losses the first one counts."""
    number = torch._C._current_graph_task_id()
    if number not in _PASSES:
        _PASSES[number] = running = ScaledPass(factor)
        torch.autograd.Variable._execution_engine.queue_callback(running)


def observed_loss_scale() -> Tensor | None:
    """Return the factor, (), in the gradients of the running backward pass; None if not observed.

    Activation checkpointing runs passes inside a pass. They have higher ids and the same factor.
    """
    if not _PASSES:
        return None
    number = torch._C._current_graph_task_id()
    begun = [known for known in _PASSES if known <= number]
    running = _PASSES.get(max(begun)) if begun else None
    return None if running is None else running.factor


def trains_in_float16(parameter: Tensor) -> bool:
    """Return whether the current forward computes in float16, by ``parameter`` or by autocast."""
    device = parameter.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device) == torch.float16
    return parameter.dtype == torch.float16
