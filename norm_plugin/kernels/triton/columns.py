"""Norms over positions, forward, in Triton; with a layer-scale a span is a group of channels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.triton.tiles import (
    as_bytes,
    check,
    columns_of_span,
    launch,
    leave_sum,
    real_rows,
    room,
    rows_of_tile,
    shares,
    tiling,
    total,
)


@triton.jit
def merge_lanes(mean: tl.tensor, squares: tl.tensor, count: tl.tensor) -> Any:
    """The mean and centred squares of all rows, from those of each of the tile's rows' rows.

    Chan, Golub and LeVeque 1983. mean, squares: (height, block); count: (height,).
    """
    count = count[:, None]
    together = tl.sum(mean * count, 0) / tl.maximum(tl.sum(count, 0), 1.0)
    apart = mean - together[None, :]
    # The count first: it may be 0 where the square is beyond the range of float32
    return together, tl.sum(squares + apart * (apart * count), 0)


@triton.jit(do_not_specialize=["rows"])
def moments_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    valid_at: tl.tensor,
    rate_at: tl.tensor,
    sums_at: tl.tensor,
    eps: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
    centre: tl.constexpr,
) -> None:
    """Sums (k = 3) over this program's rows in V: the mean, sum (u - mean)^2 and their number,
    by the updates of Welford 1962; without centring sum u, sum u^2 and nothing. And the rate."""
    column, inside = columns_of_span(channels, width, block)
    first = tl.zeros((height, block), tl.float32)  # the mean, or the sum
    squares = tl.zeros((height, block), tl.float32)
    count = tl.zeros((height,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, height), tl.num_programs(0)):
        row, exists = rows_of_tile(tile, rows, height)
        valid = real_rows(valid_at, row, exists)
        at = row[:, None] * channels + column[None, :]
        real = valid[:, None] & inside[None, :]
        if rate_at is None:
            u = tl.load(x_at + at, mask=real, other=0).to(tl.float32)
        else:  # of padding too, which a norm may map with its own rate
            u = tl.load(x_at + at, mask=exists[:, None] & inside[None, :], other=0).to(tl.float32)
            rate = 1.0 / tl.sqrt(tl.sum(u * u, 1) / width + eps)
            tl.store(rate_at + row * tl.num_programs(1) + tl.program_id(1), rate, mask=exists)
            u = tl.where(real, u * rate[:, None], 0.0)
        if centre:
            count += valid.to(tl.float32)
            apart = tl.where(real, u - first, 0.0)
            first += apart / tl.maximum(count, 1.0)[:, None]
            squares += apart * (u - first)
        else:
            first += u
            squares += u * u
    if centre:
        mean, around = merge_lanes(first, squares, count)
        at = tl.program_id(0) * 3 * channels + column
        tl.store(sums_at + at, mean, mask=inside)
        tl.store(sums_at + at + channels, around, mask=inside)
        tl.store(sums_at + at + 2 * channels, mean * 0.0 + tl.sum(count, 0), mask=inside)
    else:
        leave_sum(sums_at, 0, 3, first, column, inside, channels)
        leave_sum(sums_at, 1, 3, squares, column, inside, channels)


@triton.jit(do_not_specialize=["rows"])
def map_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    valid_at: tl.tensor,
    rate_at: tl.tensor,
    shift_at: tl.tensor,
    gain_at: tl.tensor,
    offset_at: tl.tensor,
    padding_at: tl.tensor,
    y_at: tl.tensor,
    sums_at: tl.tensor,
    eps: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
    find_rate: tl.constexpr,
) -> None:
    """y, and sums (k = 2): sum u^2 over V, and over padding, if it is mapped."""
    column, inside = columns_of_span(channels, width, block)
    gain = tl.load(gain_at + column, mask=inside, other=0)[None, :]
    offset = tl.load(offset_at + column, mask=inside, other=0)[None, :]
    if shift_at is not None:
        shift = tl.load(shift_at + column, mask=inside, other=0)[None, :]
    elsewhere = offset
    if padding_at is not None:
        elsewhere = tl.load(padding_at + column, mask=inside, other=0)[None, :]
    squares = tl.zeros((height, block), tl.float32)
    at_padding = tl.zeros((height, block), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, height), tl.num_programs(0)):
        row, exists = rows_of_tile(tile, rows, height)
        valid = real_rows(valid_at, row, exists)
        mapped = exists
        if padding_at is not None:
            mapped = valid
        at = row[:, None] * channels + column[None, :]
        u = tl.load(x_at + at, mask=mapped[:, None] & inside[None, :], other=0).to(tl.float32)
        if rate_at is not None:
            group_at = row * tl.num_programs(1) + tl.program_id(1)
            if find_rate:
                rate = 1.0 / tl.sqrt(tl.sum(u * u, 1) / width + eps)
                rate = tl.where(mapped, rate, 0.0)
                tl.store(rate_at + group_at, rate, mask=exists)
            else:
                rate = tl.load(rate_at + group_at, mask=mapped, other=0)
            u = u * rate[:, None]
        z = u
        if shift_at is not None:
            z = u - shift
        y = tl.where(mapped[:, None], z * gain + offset, elsewhere)
        tl.store(y_at + at, y, mask=exists[:, None] & inside[None, :])
        squares += tl.where(valid[:, None], u * u, 0.0)
        if padding_at is None:
            at_padding += tl.where(valid[:, None], 0.0, u * u)
    leave_sum(sums_at, 0, 2, squares, column, inside, channels)
    leave_sum(sums_at, 1, 2, at_padding, column, inside, channels)


def room_for_rates(x: Tensor, groups: int) -> Tensor | None:
    """(N, G), float32; None without a layer-scale."""
    return x.new_empty((len(x), groups), dtype=torch.float32) if groups else None


def merge_programs(sums: Tensor) -> tuple[Tensor, Tensor]:
    """sum_V u and sum_V (u - mean_V u)^2, (C,), from what each program found of its own rows.

    Args:
        sums: (programs, 3, C), as ``moments_kernel`` leaves it with centring.
    """
    means, squares, counts = sums.unbind(1)
    of_programs = means * counts
    together = of_programs.sum(0)
    apart = means - together / counts.sum(0).clamp(min=1)
    return together, (squares + apart * (apart * counts)).sum(0)


def column_moments(
    x: Tensor, valid: Tensor | None, groups: int, eps: float, centre: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See :class:`Ops`."""
    check(x, valid=valid)
    cut = tiling(x.size(1), groups)
    programs = shares(x, cut)
    rate, sums = room_for_rates(x, groups), room(x, programs, 3)
    args = (as_bytes(valid), rate, sums, float(eps))
    launch(moments_kernel, x, cut, programs, *args, centre=centre)
    if centre:
        return (*merge_programs(sums), rate)
    first, squares = total(sums[:, :2])
    return first, squares, rate


def column_map(
    x: Tensor,
    rate: Tensor | None,
    valid: Tensor | None,
    groups: int,
    eps: float,
    shift: Tensor | None,
    gain: Tensor,
    offset: Tensor,
    at_padding: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """See :class:`Ops`."""
    check(x, valid=valid)
    cut = tiling(x.size(1), groups)
    programs = shares(x, cut)
    find_rate = rate is None
    if rate is None:
        rate = room_for_rates(x, groups)
    y, sums = torch.empty_like(x), room(x, programs, 2)
    args = (as_bytes(valid), rate, shift, gain, offset, at_padding, y, sums, float(eps))
    launch(map_kernel, x, cut, programs, *args, find_rate=find_rate)
    return y, rate, total(sums)
