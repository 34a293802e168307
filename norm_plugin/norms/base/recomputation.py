"""Activation checkpointing computes a forward again in the backward pass: what norms need for that.

A repeated forward must use what the first one used, and must update no statistic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


def is_recomputing() -> bool:
    """True inside a backward pass: activation checkpointing computes a forward again."""
    return bool(torch._C._current_graph_task_id() != -1)


class Forward(NamedTuple):
    """A training forward whose backward pass may still compute it again.

    Attributes:
        sample: some values of its input, by which it is found.
        call: which call of the norm it is in the forward of the model; None: unknown.
        seen: what it used besides its input.
    """

    sample: Tensor
    call: int | None
    seen: list[Any]


class Forwards:
    """What the last training forwards of a norm saw, for activation checkpointing.

    Several forwards may come before one backward pass, whose recomputations come in any order.
    Each is found by its input. With random states restored, that is the same up to the order in
    which a device adds. Of equal inputs the newest is taken, since autograd begins with it. But the
    calls of one norm in one forward, whose inputs may be equal too, are repeated oldest first; so
    they are told apart by their number.
    """

    KEPT = 16
    CLOSE = 0.02  # of the size of the sample; another batch, or another dropout, is far beyond

    def __init__(self) -> None:
        self.capacity = self.KEPT
        self.forwards: list[Forward] = []
        self.current: list[Any] = [None]

    def open(self, x: Tensor, call: int | None = None) -> None:
        """A forward of x, (..., C), begins, or begins again in a backward pass.

        Args:
            call: which call of the norm it is in the forward of the model; None: unknown.

        Raises:
            RuntimeError: it is computed again, but too many others came since.
        """
        sample = x.detach()[tuple(slice(None, None, max(1, size // 8)) for size in x.shape)].clone()
        if not is_recomputing():
            self.current = [None]
            self.forwards = [*self.forwards, Forward(sample, call, self.current)][-self.capacity :]
            return
        forward = self._find(sample, call)
        if forward is None:
            raise RuntimeError(
                "activation checkpointing computes a forward of a norm with batch statistics "
                f"again, but its input is none of the last {self.capacity} forwards': run the "
                "backward pass before so many others, with preserve_rng_state, or do not checkpoint"
            )
        # Newest last: what was computed again is the first to go
        self.forwards = [forward, *(other for other in self.forwards if other is not forward)]
        self.current = forward.seen

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
