"""Sums over the workers of a run, through torch.distributed with any backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class WorkerGroup:
    """A process group whose workers share the statistics of a norm; copies of the norm share it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkerGroup:
        """Return this object: a process group cannot be copied."""
        return self


Sync = bool | WorkerGroup
"""Whether statistics are those of several workers: of a group, or True: of all of them."""


def worker_count(sync: Sync = True) -> int:
    """Return the number of workers that share statistics; 1 if no process group is initialized."""
    if not sync or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(_group_of(sync))


def _group_of(sync: Sync) -> dist.ProcessGroup | None:
    """Return the process group; None: the default one."""
    return sync.group if isinstance(sync, WorkerGroup) else None


def sum_over_workers(x: Tensor, sync: Sync = True) -> Tensor:
    """Return the sum of ``x`` over all workers, on each of them; with one worker ``x`` itself.

    Its gradient is that of the sum of all workers' losses. Each worker must call it the same
    number of times, and run its backward pass when the others do.
    """
    if worker_count(sync) == 1:
        return x
    from torch.distributed.nn.functional import all_reduce  # where torch has torch.distributed

    total: Tensor = all_reduce(x, group=_group_of(sync))
    return total


def gathered_rows(x: Tensor, dim: int, sync: Sync = True) -> Tensor:
    """Concatenate ``x`` of all workers along ``dim``, in their order; shapes must be equal."""
    if worker_count(sync) == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(worker_count(sync))]
    dist.all_gather(parts, x.contiguous(), group=_group_of(sync))
    return torch.cat(parts, dim)


def own_rows(x: Tensor, dim: int) -> Tensor:
    """Return what this worker gave to :func:`gathered_rows`.

    Raises:
        ValueError: the rows do not divide among this number of workers.
    """
    if worker_count() == 1:
        return x
    if x.size(dim) % worker_count():
        raise ValueError(
            f"{x.size(dim)} rows were gathered for {worker_count()} workers; the number of rows "
            "must be a multiple of the number of workers"
        )
    return x.chunk(worker_count(), dim)[dist.get_rank()]
