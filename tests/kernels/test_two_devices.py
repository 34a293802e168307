"""Statistics over two GPUs; tests/norms/test_workers.py is the same on the CPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from norm_plugin.kernels import set_kernels
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec

DEVICE = os.environ.get("NORM_TEST_DEVICE", "cpu")
TIME, BATCH, DIM = 9, 4, 64
MASK = torch.arange(TIME) >= torch.tensor([[9], [7], [2], [1]])
SYNCED = [name for name in NORM_TYPES if norm_spec(name).has_option("sync")]
LIMIT = 300  # seconds until workers that hang are ended
pytestmark = pytest.mark.device


def new_norm(name, device, dtype, kernels, **options):
    torch.manual_seed(1)
    norm = build_norm(name, DIM, **options)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    norm.to(device, dtype)
    set_kernels(norm, kernels)
    return norm


def new_batch(seed):
    """x and dL/dy, (T, B, C), of which dL/dy is 0 at padding."""
    generator = torch.Generator().manual_seed(seed)
    x, g = torch.randn(2, TIME, BATCH, DIM, generator=generator)
    return x * torch.linspace(0.5, 2, DIM) + 0.3, g.masked_fill(MASK.t().unsqueeze(-1), 0)


def step(norm, x, g, mask):
    """The output, every gradient and every statistic, by name, in float32 on the CPU."""
    norm.zero_grad()
    x = x.clone().requires_grad_()
    y = norm(x, mask)
    assert y.dtype == x.dtype and y.device == x.device
    y.backward(g)
    results = {"y": y, "x": x.grad, **{n: p.grad for n, p in norm.named_parameters()}}
    results.update(norm.named_buffers())
    return {name: value.detach().float().cpu() for name, value in results.items()}


def work(rank, address, names, queue):
    """A worker with half of the sentences, which puts its results on the queue."""
    backend, device = ("nccl", f"cuda:{rank}") if DEVICE == "cuda" else ("gloo", "cpu")
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=2)
    for name in names:
        norm = new_norm(name, device, torch.float32, "auto", sync="on")
        x, g = (whole[:, 2 * rank : 2 * rank + 2].to(device) for whole in new_batch(0))
        results = step(norm, x, g, MASK[2 * rank : 2 * rank + 2].to(device))
        queue.put((rank, name, {key: value.numpy() for key, value in results.items()}))
    dist.destroy_process_group()


@pytest.mark.two_gpus
@pytest.mark.skipif(
    torch.cuda.device_count() < 2 if DEVICE == "cuda" else "NORM_TEST_DEVICE" not in os.environ,
    reason="there are no two GPUs",
)
def test_two_devices_take_statistics_over_both(tmp_path):
    context = mp.get_context("spawn")
    queue = context.Queue()
    address = f"file://{tmp_path / 'rendezvous'}"
    workers = [
        context.Process(target=work, args=(rank, address, SYNCED, queue), daemon=True)
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=LIMIT) for _ in range(2 * len(SYNCED))]
    for worker in workers:
        worker.join(LIMIT)
    for name in SYNCED:
        halves = [part for rank in range(2) for r, n, part in results if (r, n) == (rank, name)]
        norm = new_norm(name, DEVICE, torch.float32, "auto", sync="on")
        x, g = (tensor.to(DEVICE) for tensor in new_batch(0))
        wanted = step(norm, x, g, MASK.to(DEVICE))
        for key in wanted:
            both = [torch.from_numpy(half[key]) for half in halves]
            if key in ("y", "x"):
                joined = torch.cat(both, dim=1)
            else:  # gradients of parameters add up; statistics are the same on both
                joined = sum(both) if key in dict(norm.named_parameters()) else both[0]
            torch.testing.assert_close(joined, wanted[key], rtol=1e-4, atol=1e-4, msg=key)
