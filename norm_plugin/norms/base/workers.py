"""Sums over the workers of a run, through torch.distributed with any backend."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def worker_count() -> int:
    """Return the number of workers of the default process group; 1 if none is initialized."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def max_over_workers(x: Tensor) -> Tensor:
    """Return the elementwise maximum of ``x`` over all workers, on each of them."""
    largest = x.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


def sum_over_workers(x: Tensor) -> Tensor:
    """Return the sum of ``x`` over all workers, on each of them; with one worker ``x`` itself.

    Its gradient is that of the sum of all workers' losses. Each worker must call it the same
    number of times, and run its backward pass when the others do.
    """
    if worker_count() == 1:
        return x
    from torch.distributed.nn.functional import all_reduce  # where torch has torch.distributed

    total: Tensor = all_reduce(x)
    return total


def gathered_rows(x: Tensor, dim: int) -> Tensor:
    """Concatenate ``x`` of all workers along ``dim``, in their order; shapes must be equal."""
    if worker_count() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(worker_count())]
    dist.all_gather(parts, x.contiguous())
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
