"""Steps of torch's optimizers, which are the updates of norms where no trainer reports updates.

An optimizer may step another one inside its own step, as ``ZeroRedundancyOptimizer`` and SAM do.
All of it is one step, with the parameters that any of these optimizers holds.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

if TYPE_CHECKING:  # their module imports this one
    from norm_plugin.norms.base.statistics import BatchStatisticsNorm


COUNTING: weakref.WeakSet[BatchStatisticsNorm] = weakref.WeakSet()
"""The norms that are told of each step."""


class _RunningStep(threading.local):
    """The running step of a thread that no other step contains.

    Attributes:
        optimizer: the optimizer of that step; None if no step is running.
        held: ids of the parameters of all optimizers that have finished a step inside it.
    """

    optimizer: weakref.ref[Optimizer] | None = None
    held: frozenset[int] = frozenset()


_RUNNING = _RunningStep()


def _begin_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    outermost = None if _RUNNING.optimizer is None else _RUNNING.optimizer()
    # An optimizer whose last step ended in an exception is still the outermost one
    if outermost is None or outermost is optimizer:
        _RUNNING.optimizer, _RUNNING.held = weakref.ref(optimizer), frozenset()


def _end_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Tell the norms in ``COUNTING`` of the step, if it is the outermost one."""
    if torch.compiler.is_compiling():
        return
    norms = [norm for norm in COUNTING if norm.counts_steps]
    if norms:
        groups = optimizer.param_groups
        _RUNNING.held |= {id(parameter) for group in groups for parameter in group["params"]}
    if _RUNNING.optimizer is None or _RUNNING.optimizer() is not optimizer:
        return
    _RUNNING.optimizer = None
    for norm in norms:
        own = norm.named_parameters(recurse=False)
        stepped = {name for name, parameter in own if id(parameter) in _RUNNING.held}
        if stepped:
            norm.count_step(stepped)


def count_steps_of(norm: BatchStatisticsNorm) -> None:
    """Tell ``norm`` of each step from now on, by its ``count_step``."""
    _hook_optimizers()
    COUNTING.add(norm)


@functools.cache
def _hook_optimizers() -> None:
    """Hook all optimizers of the process, once: when the first norm is to be told."""
    register_optimizer_step_pre_hook(_begin_step)
    register_optimizer_step_post_hook(_end_step)
