"""What norms need for activation checkpointing, which recomputes a forward in the backward pass.

A recomputed forward must use what the first one used, and must not update any statistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


def is_recomputing() -> bool:
    """Return True inside a backward pass, where activation checkpointing recomputes a forward."""
    return bool(torch._C._current_graph_task_id() != -1)


_saved_tensor_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
"""Returns the hooks on tensors that a graph saves, or None; torch 2.6 and 2.7 do not have it."""


def may_be_recomputed() -> bool:
    """Return whether activation checkpointing may recompute the running forward later.

    It runs the first forward without gradients, or with hooks on the tensors that the graph saves.
    """
    if _saved_tensor_hooks is None or not torch.is_grad_enabled():
        return True
    return _saved_tensor_hooks(True) is not None


@dataclass
class Used:
    """What a training forward used besides its input.

    Attributes:
        value: what the norm, or the hook of a padding mask, stores in the forward.
        fused: the fused form that computed it; None: the plain form.
    """

    value: Any = None
    fused: Any = None


class Forward(NamedTuple):
    """A training forward that a backward pass may still recompute.

    Attributes:
        sample: some values of the input, by which the forward is identified.
        call: the number of this call of the norm in the forward of the model; None: unknown.
    """

    sample: Tensor
    call: int | None
    used: Used


class Forwards:
    """The last training forwards of a norm, kept for activation checkpointing.

    Several forwards may precede one backward pass, whose recomputations come in any order. Each is
    identified by its input, which, with random states restored, is the same up to the order in
    which a device adds. Of equal inputs the newest is taken, since autograd begins with it. The
    exception are several calls of one norm in one forward, whose inputs may be equal too: they are
    recomputed oldest first, so they are identified by their number as well.
    """

    KEPT = 16
    CLOSE = 0.02  # relative to the size of the sample; other batches and dropout masks differ more

    def __init__(self) -> None:
        self.capacity = self.KEPT
        self.forwards: list[Forward] = []
        self.current = Used()

    def begin(self, x: Tensor, call: int | None = None) -> bool:
        """Begin a forward of x, (..., C); return whether it is recomputed in a backward pass.

        Args:
            call: the number of this call of the norm in the forward of the model; None: unknown.

        Raises:
            RuntimeError: a recomputed forward is no longer stored.
        """
        inside = is_recomputing()
        # A hook on the backward pass may call the norm too. Without checkpointing nothing is stored
        again = inside and bool(self.forwards)
        if not again:
            self.current = Used()
            if inside or not may_be_recomputed():
                return False
        sample = x.detach()[tuple(slice(None, None, max(1, size // 8)) for size in x.shape)].clone()
        if not again:
            self.forwards = [*self.forwards, Forward(sample, call, self.current)][-self.capacity :]
            return False
        forward = self._find(sample, call)
        if forward is None:
            raise RuntimeError(
                "activation checkpointing recomputes a forward of a norm with batch statistics, "
                f"but its input is none of the last {self.capacity} that are stored; run each "
                "backward pass earlier, set preserve_rng_state=True, or do not checkpoint"
            )
        # Newest last: a recomputed forward is the first to be dropped
        self.forwards = [forward, *(other for other in self.forwards if other is not forward)]
        self.current = forward.used
        return True

    def _find(self, sample: Tensor, call: int | None) -> Forward | None:
        nearest, least = None, self.CLOSE
        for forward in reversed(self.forwards):
            if call is not None and forward.call not in (call, None):
                continue
            if forward.sample.shape != sample.shape or forward.sample.device != sample.device:
                continue
            values, values_then = (
                torch.nan_to_num(each.float()) for each in (sample, forward.sample)
            )
            distance = float(
                (values - values_then).abs().sum() / values.abs().sum().clamp(min=1e-30)
            )
            if distance < least:
                nearest, least = forward, distance
        return nearest
