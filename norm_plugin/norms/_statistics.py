"""Statistics over the real positions of a batch, and norms that keep a running form of them."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Optional

import torch
from torch import Tensor

from norm_plugin.norms._contract import AffineNorm


def masked_mean(x: Tensor, valid: Optional[Tensor]) -> Tensor:
    """Mean over the real positions: (1/n) sum_V x. x: (..., C); valid: bool (...) or None.

    Returns:
        (C,). Without a single real position it is 0, never NaN.
    """
    rows = x.reshape(-1, x.size(-1))
    if valid is None:
        return rows.sum(dim=0) / max(rows.size(0), 1)
    keep = valid.reshape(-1, 1)
    # where, not a product: an infinity at a padded position must not become NaN
    total = torch.where(keep, rows, rows.new_zeros(())).sum(dim=0)
    return total / keep.sum().clamp(min=1)


def in_backward() -> bool:
    """True inside a backward pass: activation checkpointing computes a forward again."""
    return bool(torch._C._current_graph_task_id() != -1)


class BatchStatisticsNorm(AffineNorm):
    """A norm whose statistics run over the positions of a batch, with running forms of them.

    It counts optimizer updates for a warm-up. Under fairseq the trainer reports them through
    :meth:`set_num_updates`; elsewhere every training forward counts as one. The count is the
    integer buffer ``num_updates``, part of the checkpoint. Floating buffers never fall below
    float32: ``model.half()`` leaves them.

    Args:
        dim: number of channels.
        warmup_updates: updates during which batch statistics normalize.
    """

    batch_statistics: ClassVar[bool] = True
    num_updates: Tensor

    def __init__(self, dim: int, warmup_updates: int) -> None:
        super().__init__(dim)
        if warmup_updates < 0:
            raise ValueError(f"warmup_updates is {warmup_updates}; it must be 0 or more")
        self.warmup_updates = warmup_updates
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))
        # The same count as a Python number: reading a tensor would wait for the GPU.
        self._updates = 0
        self._trainer_counts = False

    @property
    def in_warmup(self) -> bool:
        """True while the statistics of the batch itself normalize it."""
        return self._updates < self.warmup_updates

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq's trainer before each forward with the updates done so far."""
        self._trainer_counts = True
        self._count(num_updates)

    def count_forward(self) -> None:
        """Count one training forward as an update, unless a trainer does the counting."""
        if not self._trainer_counts:
            self._count(self._updates + 1)

    def _count(self, num_updates: int) -> None:
        if num_updates != self._updates:
            self._updates = num_updates
            self.num_updates.fill_(num_updates)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._updates = int(self.num_updates.item())

    def _apply(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchStatisticsNorm:
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, *args, **kwargs)
        for name, old in before.items():
            new = self._buffers[name]
            if new is not None and new.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = old.to(new.device)
        return self
