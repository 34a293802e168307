"""Two worker processes with ``sync=on`` equal one process on the joined batch."""

from __future__ import annotations

import copy
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from reference import CASES
from torch.nn.parallel import DistributedDataParallel

from norm_plugin.kernels import VARIABLE, has_fused_form, set_kernels
from norm_plugin.norms import build_norm, norm_spec, set_process_group
from norm_plugin.norms.base.statistics import average_running_statistics
from norm_plugin.norms.base.workers import gathered_rows, own_rows

DIM = 12  # which the options of every case divide
WORKERS = 2
STEPS = 4
KERNELS = ("off", "cpu")
"""The choices of kernels; conftest.py sets each in turn, as the workers do."""
LIMIT = 600  # seconds until workers that hang are ended
# lengths of the sentences of each worker: unlike numbers, then nothing but padding, then nothing
LENGTHS = (([5, 2, 1], [4, 3]), ([1], [6, 6, 2]), ([5, 2, 1], [0, 0]), ([3, 3], []))
# Both sides compute in float64, in another order of sums.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def is_synced(name, options):
    return build_norm(name, DIM, **options).sync


def with_sync(sync):
    """The cases of the norms with batch statistics, synced where the norm has a choice."""
    for name, options in CASES:
        if norm_spec(name).batch_statistics:
            choice = {"sync": sync} if norm_spec(name).has_option("sync") else {}
            yield name, {**options, **choice}


# Some released code never syncs
SYNCED = [(name, options) for name, options in with_sync("on") if is_synced(name, options)]
APART = list(with_sync("off"))
ALONE = [(name, {"sync": "on"}) for name in ("batchnorm", "powernorm", "mabn")]
"""Norms with statistics of each kind: of the batch, running ones, and those of a window."""


def new_norm(name, options):
    torch.manual_seed(1)
    norm = build_norm(name, DIM, **options).double()
    norm.loss_is_summed = True  # over the positions of all workers, which one process has
    set_kernels(norm, None)  # those of the environment, in a worker too
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, mean=1.0)
    return norm


def share_of(worker, step):
    """x (T, B, C), mask (B, T) and dL/dy of a worker; a worker without sentences has no row."""
    lengths = LENGTHS[step][worker] or [0]
    time_steps = max(lengths) + 1 if LENGTHS[step][worker] else 0
    generator = torch.Generator().manual_seed(10 * step + worker)
    shape = (time_steps, len(lengths), DIM)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * (1 + worker) + worker
    mask = torch.arange(time_steps).unsqueeze(0) >= torch.tensor(lengths).unsqueeze(1)
    g = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, mask, g.masked_fill(mask.t().unsqueeze(-1), 0)


def joined(step):
    """The inputs of all workers together, as rows: (N, C), (N,), (N, C)."""
    shares = [share_of(worker, step) for worker in range(WORKERS)]
    x = torch.cat([x.reshape(-1, DIM) for x, _, _ in shares])
    mask = torch.cat([mask.t().reshape(-1) for _, mask, _ in shares])
    return x, mask, torch.cat([g.reshape(-1, DIM) for _, _, g in shares])


def train(norm, batches):
    """What each step gives: y and dL/dx as rows, gradients of parameters, state."""
    seen = []
    for x, mask, g in batches:
        norm.zero_grad()
        x = x.clone().requires_grad_()
        y = norm(x, mask)
        y.backward(g)
        seen.append(
            {
                "y": y.detach().reshape(-1, DIM),
                "dx": x.grad.reshape(-1, DIM),
                "parameters": [parameter.grad.clone() for parameter in norm.parameters()],
                "state": {key: value.clone() for key, value in norm.named_buffers()},
            }
        )
    return seen


def meet(worker, folder):
    """Wait for the other worker process, and form a group with it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=worker,
        world_size=WORKERS,
        timeout=timedelta(seconds=LIMIT / 2),
    )


def work(worker, folder):
    """One worker process: train every norm, plain and fused, and write down what it saw."""
    meet(worker, folder)
    os.environ[VARIABLE] = "off"  # of this process alone; what is averaged are buffers in any case
    saw = {"rows": rows_of_all(worker), "averaged": {}, "apart": on_its_own(worker)}
    saw["past padding"] = mean_past_padding(worker)
    for kernels in KERNELS:
        os.environ[VARIABLE] = kernels
        saw[kernels] = on_share(worker)
        saw["averaged"][kernels] = [
            gradient_of_a_mean(sync, worker, strength) for sync in SYNC for strength in STRENGTHS
        ]
    torch.save(saw, f"{folder}/{worker}.pt")
    dist.destroy_process_group()


def rows_of_all(worker):
    """The rows of all workers, side by side, of which each takes its own back."""
    x = torch.arange(6.0).view(3, 2) + 10 * worker
    gathered = gathered_rows(x, dim=1)
    assert torch.equal(own_rows(gathered, dim=1), x)
    with pytest.raises(ValueError, match="3 rows were gathered for 2 workers"):
        own_rows(gathered, dim=0)
    return gathered.tolist()


def on_its_own(worker):
    """The buffers of norms whose statistics are averaged, after a first and a second average."""
    batches = [share_of(worker, step) for step in range(STEPS)]
    seen = []
    for name, options in APART:
        norm = new_norm(name, options)
        train(norm, batches)
        average_running_statistics(torch.nn.ModuleList([norm]))
        first = {key: value.clone() for key, value in norm.named_buffers()}
        train(norm, batches[2:])
        average_running_statistics(norm)
        seen.append((first, dict(norm.named_buffers())))
    return seen


def mean_past_padding(worker):
    """The mean over two batches, of which no worker has a position in the first."""
    norm = new_norm("batchnorm", {"layer_scale_groups": 0, "sync": "on"})
    norm.start_cumulative_average()
    x, mask, _ = share_of(worker, 0)
    norm(x, torch.ones_like(mask))
    norm(x, mask)
    return norm.running_mean


def on_share(worker):
    """Return each step of synchronized norms, with both workers and in groups of one."""
    batches = [share_of(worker, step) for step in range(STEPS)]
    synced = [train(new_norm(name, options), batches) for name, options in SYNCED]
    groups = [dist.new_group([other]) for other in range(WORKERS)]
    alone = [new_norm(name, options) for name, options in ALONE]
    for norm in alone:
        set_process_group(norm, groups[worker])
    alone = [train(copy.deepcopy(norm), batches) for norm in alone]
    fused = [new_norm(name, options).fused is not None for name, options in SYNCED]
    return {"synced": synced, "alone": alone, "fused": fused}


SYNC, STRENGTHS = ("on", "off"), (1.0, 0.0)


def gradient_of_a_mean(sync, part, strength, distributed=True):
    """Return the gradient of a linear map, of a mean over positions with the penalty.

    part: which half of the positions; None: all of them.
    """
    torch.manual_seed(2)
    strengths = {"lambda_mean": 0.1 * strength, "lambda_std": 0.01 * strength}
    norm = build_norm("regularized-batchnorm", 8, sync=sync, **strengths)
    set_kernels(norm, None)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), norm).double()
    linear = model[0]
    x = 0.5 + torch.randn(64, 8, dtype=torch.float64)
    x = x if part is None else x.chunk(WORKERS)[part]
    model = DistributedDataParallel(model) if distributed else model
    model(x).sin().sum(dim=1).mean().backward()
    return linear.weight.grad


def test_a_mean_loss_gets_the_penalty_of_a_sum_under_ddp(workers, kernels):
    """Another test compares one process with a sum: see test_loss_scale.py."""
    of_all = [gradient_of_a_mean("on", None, strength, False) for strength in STRENGTHS]
    assert not torch.allclose(*of_all, rtol=1e-4)
    apart = [
        sum(gradient_of_a_mean("off", part, strength, False) for part in range(WORKERS)) / WORKERS
        for strength in STRENGTHS
    ]
    for worker in workers:
        for ours, expected in zip(worker["averaged"][kernels], of_all + apart, strict=True):
            torch.testing.assert_close(ours, expected, **CLOSE)


@pytest.fixture(scope="session")
def workers(tmp_path_factory):
    """What each worker saw, by the kernels it had; started once for all of them."""
    folder = tmp_path_factory.mktemp("workers")
    context = mp.start_processes(
        work, (str(folder),), nprocs=WORKERS, join=False, start_method="fork"
    )
    deadline = time.monotonic() + LIMIT
    while not context.join(timeout=1):  # raises what a worker raised
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the workers were not done after {LIMIT} seconds")
    return [torch.load(folder / f"{worker}.pt") for worker in range(WORKERS)]


@pytest.fixture
def saw(workers, kernels):
    """What each worker saw with the kernels that this process has now."""
    return [worker[kernels] for worker in workers]


@pytest.mark.parametrize("case", range(len(SYNCED)), ids=[f"{n}-{o}" for n, o in SYNCED])
def test_two_workers_equal_one_process_on_the_joined_batch(case, saw):
    name, options = SYNCED[case]
    alone = train(new_norm(name, options), [joined(step) for step in range(STEPS)])
    for step, expected in enumerate(alone):
        ours = [worker["synced"][case][step] for worker in saw]
        for key in ("y", "dx"):
            together = torch.cat([worker[key] for worker in ours])
            torch.testing.assert_close(together, expected[key], **CLOSE, msg=f"{key}, {step}")
        for index, gradient in enumerate(expected["parameters"]):
            summed = sum(worker["parameters"][index] for worker in ours)
            torch.testing.assert_close(summed, gradient, **CLOSE, msg=f"{index}, {step}")
        for key, value in expected["state"].items():
            for worker in ours:
                torch.testing.assert_close(worker["state"][key], value, **CLOSE, msg=key)


@pytest.mark.parametrize("case", range(len(ALONE)), ids=[name for name, _ in ALONE])
def test_a_group_of_one_worker_knows_no_other(case, saw):
    name, options = ALONE[case]
    for part, worker in enumerate(saw):
        batches = [share_of(part, step) for step in range(STEPS)]
        for ours, expected in zip(
            worker["alone"][case], train(new_norm(name, options), batches), strict=True
        ):
            torch.testing.assert_close(ours, expected, **CLOSE)


def test_the_workers_had_the_kernels_that_are_compared(saw, kernels):
    fused = [kernels == "cpu" and has_fused_form(norm_spec(name).cls) for name, _ in SYNCED]
    assert any(fused) == (kernels == "cpu")
    assert all(worker["fused"] == fused for worker in saw)


@pytest.mark.parametrize("case", range(len(APART)), ids=[f"{n}-{o}" for n, o in APART])
def test_statistics_held_apart_are_averaged(case, workers):
    name, options = APART[case]
    alone = []
    for worker in range(WORKERS):
        norm = new_norm(name, options)
        train(norm, [share_of(worker, step) for step in range(STEPS)])
        alone.append(dict(norm.named_buffers()))
    for key, first in alone[0].items():
        second = alone[1][key]
        expected = torch.max(first, second)
        if first.is_floating_point():
            assert not torch.equal(first, second), key
            counts = [held(norm, key) for norm in alone]
            expected = (first * counts[0] + second * counts[1]) / (sum(counts)).clamp(min=1)
        for worker in workers:
            torch.testing.assert_close(worker["apart"][case][0][key], expected, **CLOSE, msg=key)


def held(buffers, key):
    """1 where a worker has a value in that buffer: in a window, in its newest rows."""
    value = buffers[key]
    filled = buffers.get(f"{key}_filled", len(value))
    rows = torch.arange(len(value)) >= len(value) - filled
    return rows.double().unsqueeze(1) if value.dim() == 2 else torch.ones(()).double()


def test_padding_of_all_workers_has_no_weight_in_a_mean(workers):
    x, mask, _ = joined(0)
    for worker in workers:
        torch.testing.assert_close(worker["past padding"].double(), x[~mask].mean(0))


@pytest.mark.parametrize("case", range(len(APART)), ids=[f"{n}-{o}" for n, o in APART])
def test_a_worker_without_data_does_not_count(case, workers):
    """After the first average, only worker 0 has positions."""
    name, options = APART[case]
    norm = new_norm(name, options)
    norm.load_state_dict({**norm.state_dict(), **workers[0]["apart"][case][0]})
    train(norm, [share_of(0, step) for step in (2, 3)])
    for key, expected in norm.named_buffers():
        for worker in workers:
            torch.testing.assert_close(worker["apart"][case][1][key], expected, **CLOSE, msg=key)


def test_rows_of_all_workers_are_gathered_and_shared_out_again(workers):
    for worker in workers:
        assert worker["rows"] == [[0, 1, 10, 11], [2, 3, 12, 13], [4, 5, 14, 15]]
    x = torch.ones(3, 2)
    assert own_rows(gathered_rows(x, dim=1), dim=1) is x  # a worker alone
