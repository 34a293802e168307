"""The passes over columns in Triton and their formulas: padding, RMS pre-scaling, half dtypes."""

from __future__ import annotations

import math

import pytest
import torch

import slow_passes
from norm_plugin.kernels.triton import columns, tiles
from triton_backend import DEVICE
from triton_numbers import numbers, on_device, ragged, rounded, same

# The interpreter warns where a lane that is not stored divides by 0, which a GPU does in silence
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]


SIZES = [(37, 100, 2), (300, 12, 3), (37, 513, 0), (150, 12, 0)]
"""Rows, channels and groups."""
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


def with_flags(*names):
    """Every size, every combination of three flags, and every pair of a size and a flag.

    A flag and a size are compiled for each by itself: 8 of the 32 combinations suffice.
    """
    halves = [(False, False, False), (True, True, False), (True, False, True), (False, True, True)]
    cases = [(size, *flags) for size, flags in zip(SIZES, halves)]
    cases += [(size, *(not flag for flag in flags)) for size, flags in zip(SIZES, halves)]
    return pytest.mark.parametrize(("size", *names), cases, ids=str)


@pytest.fixture
def batch(size):
    """x with NaN at padding, as float64 and on the device, the real positions, and the groups."""
    rows, channels, groups = size
    x, valid = numbers(rows, channels, offset=3.0), ragged(rows)
    x[~valid] = math.nan
    return x, on_device(x)[0], valid, valid.to(DEVICE), groups


@every_size
@pytest.mark.parametrize("center", [True, False])
def test_column_moments(batch, center):
    x, near, valid, near_valid, groups = batch
    sums, rstd = columns.column_moments(near, near_valid, groups, 1e-5, center)
    (first, squares, count) = columns.merge_programs(sums)[0] if center else sums.sum(0)

    u = slow_passes.scaled(x[valid], groups, 1e-5)
    same(first, u.mean(0) if center else u.sum(0))
    same(squares, (u - (u.mean(0) if center else 0)).square().sum(0))
    assert (count == len(u)).all()
    same(None if rstd is None else rstd[near_valid], slow_passes.rstd_of(x[valid], groups, 1e-5))


def test_column_moments_far_from_zero_keep_their_digits():
    x = numbers(500, 12) + 1000  # the squares' sum is 5e8, whose last digit in float32 is 32
    sums, _ = columns.column_moments(*on_device(x), None, 0, 1e-5, True)
    _, squares, _ = columns.merge_programs(sums)[0]
    # float32 holds these inputs to 3e-5 of their deviation, of either sign; sums of raw squares
    # would be off by 32 of 500
    same(squares, (x - x.mean(0)).square().sum(0), rtol=1e-4, atol=0)


@with_flags("fill", "known_rate", "with_shift")
def test_column_map(batch, fill, known_rate, with_shift):
    """Compare y, rstd and sums; with a shift, the gain is divided by a root, too."""
    x, near, valid, near_valid, groups = batch
    if not fill:  # padding is mapped like the rest
        x = x.nan_to_num(2.0)
        (near,) = on_device(x)
    shift, gain, offset, elsewhere = numbers(4, x.size(1), seed=1)
    square = numbers(x.size(1), seed=2).square()
    rstd = None
    if known_rate:
        rstd = columns.column_moments(near, near_valid, groups, 1e-5, False)[1]
    given = (shift if with_shift else None, gain, offset, elsewhere if fill else None)
    near_given = on_device(*given, square if with_shift else None)
    y, rstd, sums = columns.map_columns(
        near, rstd, near_valid, groups, 1e-5, *near_given, sums=True
    )
    squares, at_padding_too, count = sums.sum(0)

    u = slow_passes.scaled(x, groups, 1e-5)
    root = (square + 1e-5).sqrt() if with_shift else 1
    wanted = (u - (shift if with_shift else 0)) * gain / root + offset
    same(y, torch.where(valid[:, None], wanted, elsewhere) if fill else wanted)
    at_padding = u[~valid].square().sum(0)
    same(squares, u[valid].square().sum(0))
    same(at_padding_too, torch.zeros_like(at_padding) if fill else at_padding)
    assert (count == valid.sum()).all()
    assert (rstd is None) == (groups == 0)


def test_rows_that_a_tile_has_beyond_the_last_reach_no_sum():
    x = numbers(5, 12)
    for elsewhere in (x[2], None):  # without eps their rate is infinite
        given = on_device(x[0], x[1], elsewhere)
        _, rstd, sums = columns.map_columns(
            *on_device(x), None, None, 3, 0.0, None, *given, sums=True
        )
        u = slow_passes.scaled(x, 3, 0.0)
        five = torch.full((12,), 5.0).double()
        same(sums.sum(0), torch.stack([u.square().sum(0), 0 * five, five]))
        same(rstd, slow_passes.rstd_of(x, 3, 0.0))
    for center in (True, False):
        sums, _ = columns.column_moments(*on_device(x), None, 3, 0.0, center)
        first = columns.merge_programs(sums)[0, 0] if center else sums.sum(0)[0]
        same(first, u.mean(0) if center else u.sum(0))


@with_flags("with_shift", "with_constant", "sums")
def test_column_products_and_gradient(batch, with_shift, with_constant, sums):
    x, near, valid, near_valid, groups = batch
    dy = numbers(*x.shape, seed=1)
    dy_coef, u_coef, shift, constant = numbers(4, x.size(1), seed=2)
    shift = shift if with_shift else torch.zeros_like(shift)
    constant = constant if with_constant else torch.zeros_like(constant)
    rstd = columns.column_moments(near, near_valid, groups, 1e-5, False)[1]
    near_shift = on_device(shift)[0] if with_shift else None

    dx, sums_of_dy = columns.column_gradient(
        *on_device(dy),
        near,
        rstd,
        near_valid,
        near_shift,
        *on_device(dy_coef, constant if with_constant else None, u_coef),
        sums=sums,
    )

    real = slow_passes.scaled(x[valid], groups, 1e-5) - shift
    wanted = torch.stack([dy.sum(0), dy[valid].sum(0), (dy[valid] * real).sum(0)])
    near_dy = on_device(dy)[0]
    products = columns.partial_products(near_dy, near, rstd, near_valid, near_shift)
    same(tiles.add_partial_sums(products), wanted)
    same(sums_of_dy.sum(0) if sums else None, wanted[[0, 2]] if sums else None)
    args = (groups, 1e-5, valid, shift, dy_coef, constant, u_coef)
    same(dx, slow_passes.du_to_dx(dy, x, *args))


def test_an_upstream_gradient_at_padding_reaches_nothing_but_the_sum_over_all():
    x, valid = on_device(numbers(40, 12))[0], ragged(40).to(DEVICE)
    dy = on_device(numbers(40, 12, seed=1))[0]
    dirty = dy.masked_fill(~valid[:, None], math.nan)
    ones = torch.ones(12, device=DEVICE)
    rstd = columns.column_moments(x, None, 3, 1e-5, False)[1]

    (clean_dx, clean), (dx, sums) = (
        columns.column_gradient(g, x, rstd, valid, None, ones, None, ones, sums=True)
        for g in (dy, dirty)
    )

    assert torch.equal(dx, clean_dx)
    assert torch.equal(sums[:, 1], clean[:, 1])
    assert sums.sum(0)[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_columns_in_half_precision(dtype):
    x, dy = numbers(40, 12), numbers(40, 12, seed=1)
    gain, offset = numbers(2, 12, seed=2)
    near, near_dy = on_device(x, dy, dtype=dtype)
    y, rstd, squares = columns.map_columns(
        near, None, None, 3, 1e-5, None, *on_device(gain, offset), None, sums=True
    )
    dx, sums = columns.column_gradient(
        near_dy, near, rstd, None, None, *on_device(gain, None, offset), sums=True
    )

    u = slow_passes.scaled(x, 3, 1e-5)
    same(y, u * gain + offset, dtype, **rounded(dtype))
    same(squares.sum(0)[0], u.square().sum(0))
    same(sums.sum(0)[1], (dy * u).sum(0))
    zero, every = torch.zeros(12).double(), torch.ones(40, dtype=torch.bool)
    args = (3, 1e-5, every, zero, gain, zero, offset)
    same(dx, slow_passes.du_to_dx(dy, x, *args), dtype, **rounded(dtype))
