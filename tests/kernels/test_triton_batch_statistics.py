"""Whole norms over positions: sums of many programs, of several workers, and broken numbers."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from reference import CASES

from norm_plugin.kernels import choice as choices
from norm_plugin.kernels import has_fused_form, set_kernels
from norm_plugin.kernels.fused import columns as fused_columns
from norm_plugin.kernels.fused_forms import _FORMS, Fused
from norm_plugin.kernels.passes import BatchRule, Row, RunningRule, WindowRule
from norm_plugin.kernels.triton import batch_statistics, columns
from norm_plugin.norms import build_norm, norm_spec
from triton_backend import DEVICE, OPS
from triton_numbers import numbers, on_device, same

# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]
EPS = 1e-5
OVER_POSITIONS = [
    (name, options)
    for name, options in CASES
    if norm_spec(name).batch_statistics
    and has_fused_form(norm_spec(name).cls)
    and "blend_updates" not in options
]
DIM = 36  # which the options of every case divide; more channels than one finishing program has
LENGTH = 12  # of two sentences
AT_ONCE = 8  # programs, instead of 64: fewer than the rows of a batch

ONE = torch.ones((), device=DEVICE)


@pytest.fixture
def a_program_for_each_row(monkeypatch):
    tiling = columns.tiling
    monkeypatch.setattr(columns, "num_programs", columns.num_tiles)
    monkeypatch.setattr(columns, "tiling", lambda *args: tiling(*args)._replace(block_m=1))
    monkeypatch.setattr(batch_statistics, "PROGRAMS_AT_ONCE", AT_ONCE)
    batch_statistics._finishing.cache_clear()
    yield
    batch_statistics._finishing.cache_clear()


def new_norm(name, options):
    """A norm in plain torch and float64 with parameters that are neither 0 nor 1."""
    torch.manual_seed(1)
    norm = build_norm(name, DIM, **options)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    set_kernels(norm, "off")
    return norm.double()


def fuse(norm, monkeypatch):
    monkeypatch.setattr(choices, "select_backend", lambda choice, dtype, *_: (OPS, dtype))
    norm.fused = Fused(_FORMS[type(norm)], "auto")
    return norm.to(DEVICE, torch.float32)


def train(norm, x, dy, mask):
    """One step: y, the gradients and the statistics, by name."""
    norm.zero_grad()
    x = x.detach().requires_grad_()
    y = norm(x, mask)
    y.backward(dy)
    results = {"y": y.detach(), "x": x.grad, **{n: p.grad for n, p in norm.named_parameters()}}
    return results | {key: value.clone() for key, value in norm.named_buffers()}


def batch_of(seed):
    """x and dL/dy, (LENGTH, 2, C) in float64, and the mask, (2, LENGTH)."""
    x, dy = numbers(2, LENGTH, 2, DIM, seed=seed)
    mask = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [LENGTH - 9]])
    return x + 0.3, dy.masked_fill(mask.t().unsqueeze(-1), 0), mask


def moved(batch):
    x, dy, mask = batch
    return *on_device(x, dy), mask.to(DEVICE)


def compare(ours, theirs):
    # float32 against float64: sums of 15 terms in another order, of numbers of size 1 to 30
    for key, wanted in theirs.items():
        torch.testing.assert_close(
            ours[key].cpu().double(),
            wanted.double(),
            rtol=1e-4,
            atol=2e-4,
            msg=lambda text, key=key: f"{key}: {text}",
        )


@pytest.mark.parametrize(("name", "options"), dict(reversed(OVER_POSITIONS)).items(), ids=str)
def test_sums_of_more_programs_than_are_added_at_once(
    name, options, a_program_for_each_row, monkeypatch
):
    plain = new_norm(name, options)
    fused = fuse(copy.deepcopy(plain), monkeypatch)
    batch = batch_of(0)
    compare(train(fused, *moved(batch)), train(plain, *batch))


class Workers:
    """Two workers in one process, a thread each, of which one runs until it waits for the other."""

    def __init__(self):
        self.turn, self.both, self.sums = threading.Lock(), threading.Barrier(2), {}

    def gathered_rows(self, own, dim, sync):
        rank = int(threading.current_thread().name)
        self.sums[rank] = own
        self.wait()
        together = torch.cat([self.sums[0], self.sums[1]], dim)
        self.wait()  # before sums of the next pass replace these
        return together

    def wait(self):
        self.turn.release()
        self.both.wait(timeout=60)
        self.turn.acquire()

    def train(self, norms, batches):
        results = {}

        def work(rank):
            with self.turn:
                results[rank] = train(norms[rank], *batches[rank])

        threads = [threading.Thread(target=work, args=(rank,), name=str(rank)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results[0], results[1]


SYNCED = {name: options for name, options in reversed(OVER_POSITIONS) if "variant" not in options}


@pytest.mark.parametrize(("name", "options"), SYNCED.items(), ids=str)
def test_sums_of_two_workers(name, options, monkeypatch):
    """Each has one of the sentences; the statistics are of both, parameters' gradients its own.

    tests/norms/test_workers.py is the same for the kernels in C++.
    """
    workers, whole = Workers(), new_norm(name, {**options, "sync": "on"})
    norms = [fuse(copy.deepcopy(whole), monkeypatch) for _ in range(2)]
    monkeypatch.setattr(fused_columns, "worker_count", lambda sync: 2)
    monkeypatch.setattr(fused_columns, "gathered_rows", workers.gathered_rows)
    for seed in range(2):
        x, dy, mask = batch = batch_of(seed)
        halves = [moved((x[:, i : i + 1], dy[:, i : i + 1], mask[i : i + 1])) for i in range(2)]
        first, second = workers.train(norms, halves)
        joined = {key: torch.cat([first[key], second[key]], 1) for key in ("y", "x")}
        for key, _ in whole.named_parameters():
            joined[key] = first[key] + second[key]
        compare({**first, **joined}, train(whole, *batch))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("broken", [math.nan, math.inf, None])
def test_one_channel_that_is_not_finite_keeps_all_running_statistics(center, broken):
    """37 channels belong to three finishing programs; None: no position is real."""
    x, ones = numbers(9, 37), torch.ones(37, device=DEVICE)
    valid = torch.full((9,), broken is not None, device=DEVICE)
    if broken is not None:
        x[2, 36] = broken
    near, dy = on_device(x, numbers(9, 37, seed=1))
    buffers, windows = torch.ones(6, 37, device=DEVICE), torch.ones(2, 3, 37, device=DEVICE)
    mean, square, psi2, nu, running, psi = buffers
    filled = torch.full((2,), 3, dtype=torch.int64, device=DEVICE)
    rule = BatchRule(0, EPS, center)
    args = (mean if center else None, square, 0.25, rule, None)
    _, kept, rstd = OPS.batch_forward(near, valid, ones, ones, None, *args)
    OPS.batch_backward(dy, near, rstd, valid, kept, ones, nu, ONE, 0.1, False, rule, None)
    by_running = RunningRule(0, EPS)
    _, kept, rstd = OPS.running_forward(near, valid, ones, ones, psi2, psi2, 0.25, by_running, None)
    args = (nu, ONE, 0.1, by_running, None)
    OPS.running_backward(dy, near, rstd, valid, kept, ones, *args)
    for geometric in (False, True):
        by_window = WindowRule(EPS, False, geometric, 2.0, geometric)
        args = (windows[0], filled[0], running, 0.25, by_window, None)
        kept = OPS.window_forward(near, valid, ones, *args)
        args = (windows[1], filled[1], psi if geometric else None, ONE, 0.25)
        OPS.window_backward(dy, near, valid, kept, ones, *args, by_window, None)
    assert (buffers == 1).all() and (windows == 1).all() and (filled == 3).all()


@pytest.mark.parametrize("rows", [50, 500])
def test_a_mean_far_from_zero_costs_the_variance_no_digits(rows, request):
    if rows == 50:  # the means of programs are merged; else that of a program moves
        request.getfixturevalue("a_program_for_each_row")
    x = numbers(rows, 12) + 1000  # the squares' sum is 5e7, whose last digit in float32 is 4
    ones = torch.ones(12, device=DEVICE)
    args = (ones, ones, None, None, None, 0.0, BatchRule(0, EPS), None)
    _, kept, _ = OPS.batch_forward(*on_device(x), None, *args)
    # float32 holds these inputs to 3e-5 of their deviation, of either sign
    same(kept[Row.SQUARE], x.var(0, correction=0), rtol=1e-4, atol=0)


def test_without_a_real_position_the_statistics_are_0():
    x = on_device(numbers(9, 12))[0]
    nothing, ones = torch.zeros(9, dtype=torch.bool, device=DEVICE), torch.ones(12, device=DEVICE)
    args = (ones, 2 * ones, None, None, None, 0.0, BatchRule(0, EPS), None)
    y, kept, _ = OPS.batch_forward(x, nothing, *args)
    assert not kept[[Row.MEAN, Row.SQUARE, Row.COUNT]].any() and (y == 2).all()


def test_a_share_of_1_gives_the_new_value_itself():
    x, ones = on_device(numbers(1, 37)), torch.ones(37, device=DEVICE)
    running = 1e9 * ones
    rule = BatchRule(0, EPS, center=False)
    OPS.batch_forward(*x, None, ones, ones, None, None, running, 1.0, rule, None)
    assert torch.equal(running, x[0][0].square())
