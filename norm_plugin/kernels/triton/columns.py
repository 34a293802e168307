"""Norms over positions in Triton; a tile contains a whole group of the RMS pre-scaling."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.triton.replay import replayed
from norm_plugin.kernels.triton.tiles import (
    aligned,
    as_bytes,
    check,
    empty,
    empty_like,
    empty_partial_sums,
    kernel,
    launch_pass,
    load_valid,
    num_programs,
    num_tiles,
    program_cols,
    rows_of,
    store_partial_sum,
    store_per_channel,
    tile_rows,
    tiling,
)


@triton.jit
def merge_rows(mean: tl.tensor, squares: tl.tensor, count: tl.tensor) -> Any:
    """Merge the means and centered squares that each row of the tile has accumulated.

    See Chan, Golub and LeVeque 1983. mean, squares: (BLOCK_M, BLOCK_N); count: (BLOCK_M,).
    """
    count = count[:, None]
    together = tl.sum(mean * count, 0) / tl.maximum(tl.sum(count, 0), 1.0)
    apart = mean - together[None, :]
    # Multiply by the count first: it may be 0 where the square is beyond the range of float32
    return together, tl.sum(squares + apart * (apart * count), 0)


@kernel
def moments_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    valid_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    center: tl.constexpr,
) -> None:
    """Store sums (k = 3) over this program's rows in V: the mean, sum (u - mean)^2 and their
    number, by the updates of Welford 1962; without centering sum u, sum u^2 and their number. Store
    the rstd."""
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    first = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)  # the mean, or the sum
    squares = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    count = tl.zeros((BLOCK_M,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        offsets = rows[:, None] * num_channels + cols[None, :]
        real = valid[:, None] & col_mask[None, :]
        if rstd_ptr is None:
            u = tl.load(x_ptr + offsets, mask=real, other=0).to(tl.float32)
        else:  # also for padding, which a norm may map with its own rstd
            u = tl.load(x_ptr + offsets, mask=row_mask[:, None] & col_mask[None, :], other=0).to(
                tl.float32
            )
            rstd = 1.0 / tl.sqrt(tl.sum(u * u, 1) / group_size + eps)
            tl.store(rstd_ptr + rows * tl.num_programs(1) + tl.program_id(1), rstd, mask=row_mask)
            u = tl.where(real, u * rstd[:, None], 0.0)
        count += valid.to(tl.float32)
        if center:
            apart = tl.where(real, u - first, 0.0)
            first += apart / tl.maximum(count, 1.0)[:, None]
            squares += apart * (u - first)
        else:
            first += u
            squares += u * u
    if center:
        first, squares = merge_rows(first, squares, count)
    else:
        first, squares = tl.sum(first, 0), tl.sum(squares, 0)
    number = tl.zeros((BLOCK_N,), tl.float32) + tl.sum(count, 0)
    store_per_channel(partial_sums_ptr, 0, 3, first, cols, col_mask, num_channels)
    store_per_channel(partial_sums_ptr, 1, 3, squares, cols, col_mask, num_channels)
    store_per_channel(partial_sums_ptr, 2, 3, number, cols, col_mask, num_channels)


@kernel
def map_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    valid_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    shift_ptr: tl.tensor,
    gain_ptr: tl.tensor,
    offset_ptr: tl.tensor,
    padding_value_ptr: tl.tensor,
    square_ptr: tl.tensor,
    y_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    compute_rstd: tl.constexpr,
) -> None:
    """Store y and, if requested, sums (k = 3): u^2 over V and over mapped padding, and n.

    Given a square, the gain is divided by the root of it and eps.
    """
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    gain = tl.load(gain_ptr + cols, mask=col_mask, other=0)[None, :]
    if square_ptr is not None:
        square = tl.load(square_ptr + cols, mask=col_mask, other=1)[None, :]
        gain = gain / tl.sqrt(square + eps)
    offset = tl.load(offset_ptr + cols, mask=col_mask, other=0)[None, :]
    if shift_ptr is not None:
        shift = tl.load(shift_ptr + cols, mask=col_mask, other=0)[None, :]
    elsewhere = offset
    if padding_value_ptr is not None:
        elsewhere = tl.load(padding_value_ptr + cols, mask=col_mask, other=0)[None, :]
    if partial_sums_ptr is not None:
        squares = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        at_padding = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        count = tl.zeros((BLOCK_M,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        mapped = row_mask
        if padding_value_ptr is not None:
            mapped = valid
        offsets = rows[:, None] * num_channels + cols[None, :]
        u = tl.load(x_ptr + offsets, mask=mapped[:, None] & col_mask[None, :], other=0).to(
            tl.float32
        )
        if rstd_ptr is not None:
            group_offsets = rows * tl.num_programs(1) + tl.program_id(1)
            if compute_rstd:
                rstd = 1.0 / tl.sqrt(tl.sum(u * u, 1) / group_size + eps)
                rstd = tl.where(mapped, rstd, 0.0)
                tl.store(rstd_ptr + group_offsets, rstd, mask=row_mask)
            else:
                rstd = tl.load(rstd_ptr + group_offsets, mask=mapped, other=0)
            u = u * rstd[:, None]
        z = u
        if shift_ptr is not None:
            z = u - shift
        y = tl.where(mapped[:, None], z * gain + offset, elsewhere)
        tl.store(y_ptr + offsets, y, mask=row_mask[:, None] & col_mask[None, :])
        if partial_sums_ptr is not None:
            squares += tl.where(valid[:, None], u * u, 0.0)
            count += valid.to(tl.float32)
            if padding_value_ptr is None:
                at_padding += tl.where(valid[:, None], 0.0, u * u)
    if partial_sums_ptr is not None:
        store_partial_sum(partial_sums_ptr, 0, 3, squares, cols, col_mask, num_channels)
        store_partial_sum(partial_sums_ptr, 1, 3, at_padding, cols, col_mask, num_channels)
        number = tl.zeros((BLOCK_N,), tl.float32) + tl.sum(count, 0)
        store_per_channel(partial_sums_ptr, 2, 3, number, cols, col_mask, num_channels)


def empty_rstd(x: Tensor, groups: int) -> Tensor | None:
    """Return memory for the rstd, (N, G), float32; None without pre-scaling."""
    return empty(x, rows_of(x), groups) if groups else None


def merge_programs(sums: Tensor) -> Tensor:
    """Return the mean, sum (u - mean)^2 and n of all programs, (1, 3, C).

    Args:
        sums: (programs, 3, C), as ``moments_kernel`` stores it with centering.
    """
    means, squares, counts = sums.unbind(1)
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count.clamp(min=1)
    deviation = means - mean
    return torch.stack([mean, (squares + deviation * (deviation * counts)).sum(0), count])[None]


def column_moments(
    x: Tensor, valid: Tensor | None, groups: int, eps: float, center: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the sums of ``moments_kernel`` of each program, (programs, 3, C), and the rstd."""
    check(x, valid=valid)
    x = aligned(x)
    tiles = tiling(x.size(-1), groups)
    programs = num_programs(x, tiles)
    rstd, sums = empty_rstd(x, groups), empty_partial_sums(x, programs, 3)
    args = (as_bytes(valid), rstd, sums, float(eps))
    launch_pass(moments_kernel, x, tiles, programs, *args, constants=(center,))
    return sums, rstd


def map_columns(
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    groups: int,
    eps: float,
    shift: Tensor | None,
    gain: Tensor,
    offset: Tensor,
    at_padding: Tensor | None,
    square: Tensor | None = None,
    sums: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return y, the rstd and, if requested, the sums of each program, (programs, 3, C).

    Args:
        rstd: of ``column_moments``; None: computed here, if there are groups.
        square: as in ``map_kernel``.
    """
    check(x, valid=valid)
    x = aligned(x)
    tiles = tiling(x.size(-1), groups)
    programs = num_programs(x, tiles) if sums else num_tiles(x, tiles)
    compute_rstd = rstd is None
    if rstd is None:
        rstd = empty_rstd(x, groups)
    y, partial_sums = empty_like(x), empty_partial_sums(x, programs, 3) if sums else None
    args = (as_bytes(valid), rstd, shift, gain, offset, at_padding, square, y, partial_sums)
    launch_pass(map_kernel, x, tiles, programs, *args, float(eps), constants=(compute_rstd,))
    return y, rstd, partial_sums


@replayed(6)
def column_map(
    x: Tensor,
    valid: Tensor | None,
    shift: Tensor | None,
    gain: Tensor,
    offset: Tensor,
    at_padding: Tensor | None,
    groups: int,
    eps: float,
) -> Tensor:
    """Return y = (u - shift) * gain + offset.

    Args:
        shift: None: 0.
        at_padding: y at padding; None: padding is mapped like every other row.
    """
    return map_columns(x, None, valid, groups, eps, shift, gain, offset, at_padding)[0]


# --- backward ------------------------------------------------------------------------------------


@triton.jit
def load_tile(
    x_ptr: tl.tensor,
    dy_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    rows: tl.tensor,
    row_mask: tl.tensor,
    valid: tl.tensor,
    cols: tl.tensor,
    col_mask: tl.tensor,
    num_channels: tl.constexpr,
) -> Any:
    """Return u and dy of a tile, (BLOCK_M, BLOCK_N), and the rstd, (BLOCK_M,); 1 if not pre-scaled.

    At padding u is 0 and dy is unchanged.
    """
    offsets = rows[:, None] * num_channels + cols[None, :]
    u = tl.load(x_ptr + offsets, mask=valid[:, None] & col_mask[None, :], other=0).to(tl.float32)
    dy = tl.load(dy_ptr + offsets, mask=row_mask[:, None] & col_mask[None, :], other=0).to(
        tl.float32
    )
    rstd = valid.to(tl.float32)
    if rstd_ptr is not None:
        group_offsets = rows * tl.num_programs(1) + tl.program_id(1)
        rstd = tl.load(rstd_ptr + group_offsets, mask=valid, other=0)
        u = u * rstd[:, None]
    return u, dy, rstd


@kernel
def products_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    dy_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    valid_ptr: tl.tensor,
    shift_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Store sum_N dy, sum_V dy and sum_V dy (u - shift) over this program's rows."""
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sum_valid_dy = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sum_dy_u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        z, dy, _ = load_tile(
            x_ptr, dy_ptr, rstd_ptr, rows, row_mask, valid, cols, col_mask, num_channels
        )
        if shift_ptr is not None:
            z = z - tl.load(shift_ptr + cols, mask=col_mask, other=0)[None, :]
        if valid_ptr is not None:
            dbias += dy
            dy = tl.where(valid[:, None], dy, 0.0)
        sum_valid_dy += dy
        sum_dy_u += dy * z
    if valid_ptr is None:
        dbias = sum_valid_dy
    store_partial_sum(partial_sums_ptr, 0, 3, dbias, cols, col_mask, num_channels)
    store_partial_sum(partial_sums_ptr, 1, 3, sum_valid_dy, cols, col_mask, num_channels)
    store_partial_sum(partial_sums_ptr, 2, 3, sum_dy_u, cols, col_mask, num_channels)


@kernel
def gradient_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    dy_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    valid_ptr: tl.tensor,
    shift_ptr: tl.tensor,
    dy_coef_ptr: tl.tensor,
    constant_ptr: tl.tensor,
    u_coef_ptr: tl.tensor,
    nu_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Store dx and, if requested, sums (k = 2): dy over all rows, dy (u - shift) over V.

    Given nu, the factor of u - shift is multiplied by -nu and the scale.
    """
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    dy_coef = tl.load(dy_coef_ptr + cols, mask=col_mask, other=0)[None, :]
    u_coef = tl.load(u_coef_ptr + cols, mask=col_mask, other=0)[None, :]
    if nu_ptr is not None:
        nu = tl.load(nu_ptr + cols, mask=col_mask, other=0)[None, :]
        u_coef = -nu * tl.load(scale_ptr) * u_coef
    if partial_sums_ptr is not None:
        dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        sum_dy_u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        u, dy, rstd = load_tile(
            x_ptr, dy_ptr, rstd_ptr, rows, row_mask, valid, cols, col_mask, num_channels
        )
        z = u
        if shift_ptr is not None:
            z = u - tl.load(shift_ptr + cols, mask=col_mask, other=0)[None, :]
        if partial_sums_ptr is not None:
            dbias += dy
        dy = tl.where(valid[:, None], dy, 0.0)
        if partial_sums_ptr is not None:
            sum_dy_u += dy * z
        dx = dy_coef * dy + u_coef * z
        if constant_ptr is not None:
            dx = dx + tl.load(constant_ptr + cols, mask=col_mask, other=0)[None, :]
        if rstd_ptr is not None:
            dx = (dx - u * (tl.sum(dx * u, 1) / group_size)[:, None]) * rstd[:, None]
        dx = tl.where(valid[:, None], dx, 0.0)
        offsets = rows[:, None] * num_channels + cols[None, :]
        tl.store(dx_ptr + offsets, dx, mask=row_mask[:, None] & col_mask[None, :])
    if partial_sums_ptr is not None:
        store_partial_sum(partial_sums_ptr, 0, 2, dbias, cols, col_mask, num_channels)
        store_partial_sum(partial_sums_ptr, 1, 2, sum_dy_u, cols, col_mask, num_channels)


def _groups(rstd: Tensor | None) -> int:
    return 0 if rstd is None else rstd.size(1)


def partial_products(
    dy: Tensor, x: Tensor, rstd: Tensor | None, valid: Tensor | None, shift: Tensor | None
) -> Tensor:
    """Return sum_N dy, sum_V dy and sum_V dy (u - shift) of each program, (programs, 3, C)."""
    check(x, dy, valid)
    x, dy = aligned(x), aligned(dy)
    tiles = tiling(x.size(-1), _groups(rstd))
    programs = num_programs(x, tiles)
    sums = empty_partial_sums(x, programs, 3)
    launch_pass(products_kernel, x, tiles, programs, dy, rstd, as_bytes(valid), shift, sums)
    return sums


def column_gradient(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    shift: Tensor | None,
    dy_coef: Tensor,
    constant: Tensor | None,
    u_coef: Tensor,
    nu: Tensor | None = None,
    scale: Tensor | None = None,
    sums: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return dx and, if requested, the sums of each program, (programs, 2, C).

    du = dy_coef * dy + constant + u_coef * (u - shift) at V, 0 at padding; give both shift and
    constant, or neither. With pre-scaling this is followed by dx = rstd (du - u mean(du u)), with
    the mean over the group.

    Args:
        nu, scale: (C,) and (), as in ``gradient_kernel``; both or neither.
    """
    check(x, dy, valid)
    x, dy = aligned(x), aligned(dy)
    tiles = tiling(x.size(-1), _groups(rstd))
    programs = num_programs(x, tiles) if sums else num_tiles(x, tiles)
    dx, partial_sums = empty_like(x), empty_partial_sums(x, programs, 2) if sums else None
    args = (dy, rstd, as_bytes(valid), shift, dy_coef, constant, u_coef, nu, scale, dx)
    launch_pass(gradient_kernel, x, tiles, programs, *args, partial_sums)
    return dx, partial_sums
