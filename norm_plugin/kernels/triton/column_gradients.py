"""Norms over positions, backward, in Triton."""

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
    every_tile,
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
def load_tile(
    x_at: tl.tensor,
    dy_at: tl.tensor,
    rate_at: tl.tensor,
    row: tl.tensor,
    exists: tl.tensor,
    valid: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    channels: tl.constexpr,
) -> Any:
    """u and dy of a tile, (height, block), and the rate, (height,), 1 without layer-scale.

    At padding u is 0 and dy what it is.
    """
    at = row[:, None] * channels + column[None, :]
    u = tl.load(x_at + at, mask=valid[:, None] & inside[None, :], other=0).to(tl.float32)
    dy = tl.load(dy_at + at, mask=exists[:, None] & inside[None, :], other=0).to(tl.float32)
    rate = valid.to(tl.float32)
    if rate_at is not None:
        group_at = row * tl.num_programs(1) + tl.program_id(1)
        rate = tl.load(rate_at + group_at, mask=valid, other=0)
        u = u * rate[:, None]
    return u, dy, rate


@triton.jit
def leave_products(
    sums_at: tl.tensor,
    valid_at: tl.tensor,
    every: tl.tensor,
    real: tl.tensor,
    with_u: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    channels: tl.constexpr,
) -> None:
    """Sums (k = 3): dy over all rows, dy and dy (u - shift) over V."""
    if valid_at is None:
        every = real
    leave_sum(sums_at, 0, 3, every, column, inside, channels)
    leave_sum(sums_at, 1, 3, real, column, inside, channels)
    leave_sum(sums_at, 2, 3, with_u, column, inside, channels)


@triton.jit(do_not_specialize=["rows"])
def products_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    dy_at: tl.tensor,
    rate_at: tl.tensor,
    valid_at: tl.tensor,
    shift_at: tl.tensor,
    sums_at: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
) -> None:
    """The three sums of column_products over this program's rows."""
    column, inside = columns_of_span(channels, width, block)
    every = tl.zeros((height, block), tl.float32)
    real = tl.zeros((height, block), tl.float32)
    with_u = tl.zeros((height, block), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, height), tl.num_programs(0)):
        row, exists = rows_of_tile(tile, rows, height)
        valid = real_rows(valid_at, row, exists)
        z, dy, _ = load_tile(x_at, dy_at, rate_at, row, exists, valid, column, inside, channels)
        if shift_at is not None:
            z = z - tl.load(shift_at + column, mask=inside, other=0)[None, :]
        if valid_at is not None:
            every += dy
            dy = tl.where(valid[:, None], dy, 0.0)
        real += dy
        with_u += dy * z
    leave_products(sums_at, valid_at, every, real, with_u, column, inside, channels)


@triton.jit(do_not_specialize=["rows"])
def gradient_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    dy_at: tl.tensor,
    rate_at: tl.tensor,
    valid_at: tl.tensor,
    shift_at: tl.tensor,
    of_dy_at: tl.tensor,
    constant_at: tl.tensor,
    of_u_at: tl.tensor,
    dx_at: tl.tensor,
    sums_at: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
) -> None:
    """dx for every tile of this program, and the sums of column_products if there is room."""
    column, inside = columns_of_span(channels, width, block)
    of_dy = tl.load(of_dy_at + column, mask=inside, other=0)[None, :]
    of_u = tl.load(of_u_at + column, mask=inside, other=0)[None, :]
    if sums_at is not None:
        every = tl.zeros((height, block), tl.float32)
        real = tl.zeros((height, block), tl.float32)
        with_u = tl.zeros((height, block), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, height), tl.num_programs(0)):
        row, exists = rows_of_tile(tile, rows, height)
        valid = real_rows(valid_at, row, exists)
        u, dy, rate = load_tile(x_at, dy_at, rate_at, row, exists, valid, column, inside, channels)
        z = u
        if shift_at is not None:
            z = u - tl.load(shift_at + column, mask=inside, other=0)[None, :]
        if sums_at is not None and valid_at is not None:
            every += dy
        dy = tl.where(valid[:, None], dy, 0.0)
        if sums_at is not None:
            real += dy
            with_u += dy * z
        dx = of_dy * dy + of_u * z
        if constant_at is not None:
            dx = dx + tl.load(constant_at + column, mask=inside, other=0)[None, :]
        if rate_at is not None:
            dx = (dx - u * (tl.sum(dx * u, 1) / width)[:, None]) * rate[:, None]
        dx = tl.where(valid[:, None], dx, 0.0)
        at = row[:, None] * channels + column[None, :]
        tl.store(dx_at + at, dx, mask=exists[:, None] & inside[None, :])
    if sums_at is not None:
        leave_products(sums_at, valid_at, every, real, with_u, column, inside, channels)


def _groups(rate: Tensor | None) -> int:
    return 0 if rate is None else rate.size(1)


def column_products(
    dy: Tensor,
    x: Tensor,
    rate: Tensor | None,
    valid: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    """See :class:`Ops`."""
    check(x, dy, valid)
    cut = tiling(x.size(1), _groups(rate))
    programs = shares(x, cut)
    sums = room(x, programs, 3)
    launch(products_kernel, x, cut, programs, dy, rate, as_bytes(valid), shift, sums)
    return total(sums)


def column_gradient(
    dy: Tensor,
    x: Tensor,
    rate: Tensor | None,
    valid: Tensor | None,
    shift: Tensor | None,
    of_dy: Tensor,
    constant: Tensor | None,
    of_u: Tensor,
    sums: bool,
) -> tuple[Tensor, Tensor]:
    """See :class:`Ops`."""
    check(x, dy, valid)
    cut = tiling(x.size(1), _groups(rate))
    programs = shares(x, cut) if sums else every_tile(x, cut)
    dx, places = torch.empty_like(x), room(x, programs, 3) if sums else None
    args = (dy, rate, as_bytes(valid), shift, of_dy, constant, of_u, dx, places)
    launch(gradient_kernel, x, cut, programs, *args)
    return dx, x.new_empty(0, dtype=torch.float32) if places is None else total(places)
