"""What the Triton backend computes per channel, against the formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch

import slow_passes
from norm_plugin.kernels.triton import batch_statistics, columns
from norm_plugin.norms.base import means
from norm_plugin.norms.power_norm import update_nu
from triton_backend import DEVICE, OPS
from triton_numbers import numbers, on_device, ragged, same

# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
EPS = 1e-5
SIZES = [(37, 100, 2), (70, 12, 0)]
"""Rows, channels and groups."""


@pytest.fixture(params=[False, True], ids=["few programs", "a program for each row"])
def programs(request, monkeypatch):
    """Many programs have more partial sums than one tile of those that are added at once."""
    if request.param:
        tiling = columns.tiling
        for module in (columns, batch_statistics):
            monkeypatch.setattr(module, "num_programs", columns.num_tiles)
            monkeypatch.setattr(module, "tiling", lambda *args: tiling(*args)._replace(block_m=1))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_whole_norm_by_the_statistics_of_its_batch(size, center, programs):
    rows, channels, groups = size
    x, dy, valid = (
        numbers(rows, channels, offset=3.0),
        numbers(rows, channels, seed=1),
        ragged(rows),
    )
    x[~valid] = math.nan
    weight, bias, pull_constant, pull_u_coef = numbers(4, channels, seed=2)
    near, near_dy, near_weight, near_bias, *pull = on_device(
        x, dy, weight, bias, pull_constant, pull_u_coef
    )
    if not center:
        pull = [None, None]
    real = valid.to(DEVICE)
    buffers, nu = torch.ones(2, channels, device=DEVICE), torch.ones(channels, device=DEVICE)
    running = [buffers[0] if center else None, buffers[1]]
    y, (mean, square, inverse, _, count), rstd = OPS.batch_norm_forward(
        near, real, groups, EPS, center, near_weight, near_bias, *running, 0.25
    )
    before = torch.stack([mean, square, inverse, inverse * near_weight, count])
    scale = torch.tensor(8.0, device=DEVICE) if center else 8.0
    recursion = (nu, 0.1, scale)
    dx, (every, dweight, _, _, _, mean_gx, _) = OPS.batch_norm_backward(
        near_dy, near, rstd, real, center, before, near_weight, *pull, *recursion
    )

    n = int(valid.sum())
    u = slow_passes.scaled(x[valid], groups, EPS)
    mu = u.mean(0) if center else torch.zeros(channels).double()
    wanted_square = (u - mu).square().mean(0)
    root = (wanted_square + EPS).sqrt()
    x_hat, g = (u - mu) / root, dy[valid] * weight
    assert (count == n).all()
    same(running[1], 0.75 + 0.25 * wanted_square)
    if center:
        same(running[0], 0.75 + 0.25 * mu)
    same(nu, 1 - 0.1 * wanted_square / root.square() + 0.1 * (g * x_hat).mean(0) / 8)
    if center:
        same(mean, mu)
    same(square, wanted_square)
    same(inverse, 1 / root)
    same(y[real], x_hat * weight + bias)
    same(y[~real], bias.expand(rows - n, -1))
    same(every, dy.sum(0))
    same(dweight, (dy[valid] * x_hat).sum(0))
    same(mean_gx, (g * x_hat).mean(0))
    constant, u_coef = -g.mean(0) / root * center, -(g * x_hat).mean(0) / root.square()
    if center:
        constant, u_coef = constant + pull_constant, u_coef + pull_u_coef
    args = (groups, EPS, valid, mu, weight / root, constant, u_coef)
    same(dx, slow_passes.du_to_dx(dy, x, *args))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_powernorm_after_its_warmup(size, as_tensor, programs):
    rows, channels, groups = size
    x, dy = numbers(rows, channels, offset=3.0), numbers(rows, channels, seed=1)
    valid = ragged(rows)
    x[~valid] = math.nan
    weight, bias, start_nu = numbers(3, channels, seed=2)
    start = 1 + numbers(channels, seed=3).square()
    near, near_dy, near_weight, near_bias, nu, psi2 = on_device(
        x, dy, weight, bias, start_nu, start
    )
    real = valid.to(DEVICE)
    y, kept, rstd = OPS.running_norm_forward(
        near, real, groups, EPS, psi2, near_weight, near_bias, psi2, 0.25
    )
    scale = torch.tensor(8.0, device=DEVICE) if as_tensor else 8.0
    dx, (every, dweight, _) = OPS.running_norm_backward(
        near_dy, near, rstd, real, kept, near_weight, nu, 0.1, scale
    )

    u, psi = slow_passes.scaled(x[valid], groups, EPS), (start + EPS).sqrt()
    x_hat, g, square = u / psi, dy[valid] * weight, u.square().mean(0)
    same(y[real], x_hat * weight + bias)
    same(y[~real], bias.expand(int((~valid).sum()), -1))
    same(psi2, 0.75 * start + 0.25 * square)
    same(every, dy.sum(0))
    same(dweight, (dy[valid] * x_hat).sum(0))
    same(nu, start_nu * (1 - 0.1 * square / psi.square()) + 0.1 * (g * x_hat).mean(0) / 8)
    zero, u_coef = torch.zeros(channels).double(), -start_nu * 8 / psi.square()
    args = (groups, EPS, valid, zero, weight / psi, zero, u_coef)
    same(dx, slow_passes.du_to_dx(dy, x, *args))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("broken", [math.nan, math.inf, None])
def test_one_channel_that_is_not_finite_keeps_all_running_statistics(center, broken):
    """37 channels belong to three finishing programs; None: no position is real."""
    x, ones = numbers(9, 37), torch.ones(37, device=DEVICE)
    valid = torch.full((9,), broken is not None, device=DEVICE)
    if broken is not None:
        x[2, 36] = broken
    near, dy = on_device(x, numbers(9, 37, seed=1))
    buffers = torch.ones(4, 37, device=DEVICE)
    mean, square, psi2, nu = buffers
    running = (mean if center else None, square, 0.25)
    _, kept, rstd = OPS.batch_norm_forward(near, valid, 0, EPS, center, ones, ones, *running)
    with_nu = (None, None, nu, 0.1, 1.0)
    OPS.batch_norm_backward(dy, near, rstd, valid, center, kept, ones, *with_nu)
    _, kept, rstd = OPS.running_norm_forward(near, valid, 0, EPS, psi2, ones, ones, psi2, 0.25)
    OPS.running_norm_backward(dy, near, rstd, valid, kept, ones, nu, 0.1, 1.0)
    assert (buffers == 1).all()


def test_a_mean_far_from_zero_costs_the_variance_no_digits(programs):
    x = numbers(200, 12) + 1000  # the squares' sum is 2e8, whose last digit in float32 is 16
    ones = torch.ones(12, device=DEVICE)
    args = (None, 0, EPS, True, ones, ones, None, None, 0.0)
    _, (_, variance, *_), _ = OPS.batch_norm_forward(*on_device(x), *args)
    # float32 holds these inputs to 3e-5 of their deviation, of either sign
    same(variance, x.var(0, correction=0), rtol=1e-4, atol=0)


def test_without_a_real_position_the_statistics_are_0():
    x = on_device(numbers(9, 12))[0]
    nothing, ones = torch.zeros(9, dtype=torch.bool, device=DEVICE), torch.ones(12, device=DEVICE)
    args = (nothing, 0, EPS, True, ones, 2 * ones, None, None, 0.0)
    y, (mean, variance, _, _, count), _ = OPS.batch_norm_forward(x, *args)
    assert not count.any() and not mean.any() and not variance.any() and (y == 2).all()


BROKEN = [None, math.nan, math.inf, -math.inf]


def test_a_share_of_1_gives_the_new_value_itself():
    near, value = on_device(1e9 * numbers(37), numbers(37, seed=1))
    OPS.update_running_average(near, value, 1.0, torch.ones((), device=DEVICE))
    assert torch.equal(near, value)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("count", [0.0, 3.0])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_the_update_of_a_running_statistic(share, count, broken):
    value, buffer = numbers(2, 37)
    if broken is not None:
        value[5] = broken
    near, near_value = on_device(buffer, value)
    OPS.update_running_average(near, near_value, share, torch.tensor(count, device=DEVICE))
    wanted = buffer.clone()
    means.update_running_average(wanted, value, share, torch.tensor(count))
    same(near, wanted)
    assert torch.equal(near.cpu().double(), buffer) == (count == 0 or broken is not None)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_recursion_of_powernorm(as_tensor, broken):
    nu, gamma, lambda_ = numbers(3, 37)
    if broken is not None:
        lambda_[5] = broken
    near, near_gamma, near_lambda = on_device(nu, gamma, lambda_)
    step = torch.tensor(0.1, device=DEVICE) if as_tensor else 0.1
    OPS.update_nu(near, near_gamma, near_lambda, step)
    wanted = nu.clone()
    update_nu(wanted, gamma, lambda_, 0.1)
    same(near, wanted)
    assert torch.equal(near.cpu().double(), nu) == (broken is not None)
