"""Sums over the workers of a run, through torch.distributed with any backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def worker_count() -> int:
    """Workers of the default process group; 1 if none is initialized."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


class _SumOverWorkers(torch.autograd.Function):
    """Every worker gets the sum, so every worker's gradient of it reaches every summand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return sum_over_workers(g)


def max_over_workers(x: Tensor) -> Tensor:
    """The largest value of ``x`` over all workers, element by element, at each of them."""
    largest = x.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


def sum_over_workers(x: Tensor) -> Tensor:
    """The sum of ``x`` over all workers, at each of them; ``x`` itself where there is one.

    Its gradient is that of the sum of all workers' losses. Each worker has to call it the same
    number of times, and to run its backward pass when the others do.
    """
    return x if worker_count() == 1 else _SumOverWorkers.apply(x)


def gathered_rows(x: Tensor, dim: int) -> Tensor:
    """``x`` of all workers, side by side along ``dim`` in their order; all give the same shape."""
    if worker_count() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(worker_count())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


def own_rows(x: Tensor, dim: int) -> Tensor:
    """What this worker gave to :func:`gathered_rows`; ValueError if there were other workers."""
    if worker_count() == 1:
        return x
    if x.size(dim) % worker_count():
        raise ValueError(f"{x.size(dim)} rows cannot be shared by {worker_count()} workers")
    return x.chunk(worker_count(), dim)[dist.get_rank()]
