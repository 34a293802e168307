"""Norms by statistics over positions: what is computed for each channel, and whole norms.

A pass over memory stores the partial sums of each of its programs. A finishing kernel adds them in
a fixed order, so that equal inputs give bit-equal results, and computes all that is per channel.
Running statistics do not change if any channel is not finite: the last of the finishing programs
sees all channels, and updates them. Kernels of one stream run one after the other, so a pass may
read a running statistic that the finishing kernel after it updates.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.triton.columns import (
    empty_rstd,
    gradient_kernel,
    load_tile,
    mapped,
    partial_moments,
    partial_products,
)
from norm_plugin.kernels.triton.tiles import (
    aligned,
    as_bytes,
    check,
    empty_partial_sums,
    kernel,
    launch,
    launch_pass,
    load_valid,
    num_programs,
    num_tiles,
    program_cols,
    store_partial_sum,
    store_per_channel,
    tile_rows,
    tiling,
)

CHANNELS_A_PROGRAM = 16
PROGRAMS_AT_ONCE = 64
"""The size of the tile in which partial sums are added."""
WARPS = 4


@triton.jit
def channels_of(num_channels: tl.constexpr, BLOCK_N: tl.constexpr) -> Any:  # (BLOCK_N,) each
    """Return the channels of this program, and which of them exist."""
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    return cols, cols < num_channels


@triton.jit
def load_kind(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    first: tl.tensor,
    programs: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> tl.tensor:
    """Load one of the sums of BLOCK_P programs, (BLOCK_P, BLOCK_N); 0 beyond the last."""
    program = first + tl.arange(0, BLOCK_P)
    offsets = (program * kinds + kind)[:, None] * num_channels + cols[None, :]
    mask = (program < programs)[:, None] & (cols < num_channels)[None, :]
    return tl.load(partial_sums_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def store_rows(
    out_ptr: tl.tensor,
    row: tl.constexpr,
    numbers: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store ``numbers``, (BLOCK_N,), in one row of (rows, C)."""
    tl.store(out_ptr + row * num_channels + cols, numbers, mask=cols < num_channels)


@triton.jit
def load_per_channel(
    numbers_ptr: tl.tensor, row: tl.constexpr, cols: tl.tensor, num_channels: tl.constexpr
) -> tl.tensor:
    """Load one row of (rows, C)."""
    return tl.load(numbers_ptr + row * num_channels + cols, mask=cols < num_channels, other=0.0)


@triton.jit
def sum_of_kind(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    programs: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> tl.tensor:
    """Add one of the sums of all programs, (BLOCK_N,)."""
    total = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        total += load_kind(
            partial_sums_ptr, kind, kinds, first, programs, cols, num_channels, BLOCK_P
        )
    return tl.sum(total, 0)


@triton.jit
def all_finite(numbers: tl.tensor) -> tl.tensor:
    """Return whether no entry is NaN or infinite."""
    return tl.min((tl.abs(numbers) < float("inf")).to(tl.int32), 0) == 1


@triton.jit
def is_last(ticket_ptr: tl.tensor) -> tl.tensor:
    """Return whether all other programs have come here; then all that they stored is visible.

    The ticket is 0 before and after the kernel.
    """
    tl.debug_barrier()
    last = tl.atomic_add(ticket_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1
    tl.store(ticket_ptr, 0, mask=last)
    return last


@triton.jit
def update_average(
    buffer_ptr: tl.tensor,
    value: tl.tensor,
    share: tl.tensor,
    some: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Update a running statistic as ``norms/base/means.py`` does, from the nearer end.

    value: that of all channels, (BLOCK_C,), 0 beyond the last; some: whether there is a position.
    """
    mask = cols < num_channels
    old = tl.load(buffer_ptr + cols, mask=mask, other=0)
    new = tl.where(share < 0.5, old + share * (value - old), value - (1 - share) * (value - old))
    usable = all_finite(value) & some
    tl.store(buffer_ptr + cols, new, mask=mask & usable)


@kernel
def finish_moments_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    weight_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    running_mean_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    ticket_ptr: tl.tensor,
    share: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    center: tl.constexpr,
) -> None:
    """Store mean, variance (or mean square), 1 / its root, the gain and n, (5, C).

    Update the running statistics that are given. The sums of programs are merged as Chan, Golub and
    LeVeque 1983 do.
    """
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    sums = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    counts = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        count = load_kind(partial_sums_ptr, 2, 3, first, programs, cols, num_channels, BLOCK_P)
        counts += count
        if center:
            part = load_kind(partial_sums_ptr, 0, 3, first, programs, cols, num_channels, BLOCK_P)
            sums += part * count
    number = tl.sum(counts, 0)
    n = tl.maximum(number, 1.0)
    mean = tl.sum(sums, 0) / n
    squares = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        squares += load_kind(partial_sums_ptr, 1, 3, first, programs, cols, num_channels, BLOCK_P)
        if center:
            count = load_kind(partial_sums_ptr, 2, 3, first, programs, cols, num_channels, BLOCK_P)
            part = load_kind(partial_sums_ptr, 0, 3, first, programs, cols, num_channels, BLOCK_P)
            apart = part - mean[None, :]
            # Multiply by the count first: it may be 0 where the square is beyond float32
            squares += apart * (apart * count)
    variance = tl.sum(squares, 0) / n
    inverse = 1.0 / tl.sqrt(variance + eps)
    gain = tl.load(weight_ptr + cols, mask=col_mask, other=0) * inverse
    store_rows(numbers_ptr, 0, mean, cols, num_channels)
    store_rows(numbers_ptr, 1, variance, cols, num_channels)
    store_rows(numbers_ptr, 2, inverse, cols, num_channels)
    store_rows(numbers_ptr, 3, gain, cols, num_channels)
    store_rows(numbers_ptr, 4, number, cols, num_channels)
    if running_square_ptr is not None:  # noqa: SIM102  the compiler decides this one
        if is_last(ticket_ptr):
            each = tl.arange(0, BLOCK_C)
            some = tl.load(numbers_ptr + 4 * num_channels) > 0
            value = load_per_channel(numbers_ptr, 1, each, num_channels)
            update_average(running_square_ptr, value, share, some, each, num_channels)
            if running_mean_ptr is not None:
                value = load_per_channel(numbers_ptr, 0, each, num_channels)
                update_average(running_mean_ptr, value, share, some, each, num_channels)


@kernel
def finish_products_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    pull_constant_ptr: tl.tensor,
    pull_u_coef_ptr: tl.tensor,
    out_ptr: tl.tensor,
    nu_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    ticket_ptr: tl.tensor,
    step: tl.tensor,
    scale: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Store sum_N dy, sum_V dy x_hat, a, c and b of du, mean_V(g x_hat) and the next nu, (7, C).

    numbers: as ``finish_moments_kernel`` stores them. Given nu, it becomes nu (1 - step Gamma) +
    step Lambda / scale with Gamma = psi_B^2 / (psi_B^2 + eps).
    """
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    dbias = sum_of_kind(partial_sums_ptr, 0, 3, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    real = sum_of_kind(partial_sums_ptr, 1, 3, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    with_u = sum_of_kind(partial_sums_ptr, 2, 3, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    n = tl.maximum(tl.load(numbers_ptr + 4 * num_channels), 1.0)
    inverse = load_per_channel(numbers_ptr, 2, cols, num_channels)
    weight = tl.load(weight_ptr + cols, mask=col_mask, other=0)
    gain, dweight = weight * inverse, with_u * inverse
    mean_gx = weight * dweight / n
    constant = -gain * real / n
    u_coef = -mean_gx * inverse * inverse
    if pull_constant_ptr is not None:
        constant += tl.load(pull_constant_ptr + cols, mask=col_mask, other=0)
        u_coef += tl.load(pull_u_coef_ptr + cols, mask=col_mask, other=0)
    store_rows(out_ptr, 0, dbias, cols, num_channels)
    store_rows(out_ptr, 1, dweight, cols, num_channels)
    store_rows(out_ptr, 2, gain, cols, num_channels)
    store_rows(out_ptr, 3, constant, cols, num_channels)
    store_rows(out_ptr, 4, u_coef, cols, num_channels)
    store_rows(out_ptr, 5, mean_gx, cols, num_channels)
    if nu_ptr is not None:
        if scale_ptr is not None:
            scale = tl.load(scale_ptr)
        gamma = load_per_channel(numbers_ptr, 1, cols, num_channels) * inverse * inverse
        store_next_nu(nu_ptr, gamma, mean_gx / scale, step, out_ptr, 6, cols, num_channels)
        if is_last(ticket_ptr):
            keep_finite_nu(nu_ptr, out_ptr, 6, num_channels, BLOCK_C)


@triton.jit
def store_next_nu(
    nu_ptr: tl.tensor,
    gamma: tl.tensor,
    lambda_: tl.tensor,
    step: tl.tensor,
    out_ptr: tl.tensor,
    row: tl.constexpr,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store nu (1 - step Gamma) + step Lambda in a row of the results, (rows, C)."""
    nu = tl.load(nu_ptr + cols, mask=cols < num_channels, other=0)
    store_rows(out_ptr, row, nu * (1 - step * gamma) + step * lambda_, cols, num_channels)


@triton.jit
def keep_finite_nu(
    nu_ptr: tl.tensor,
    out_ptr: tl.tensor,
    row: tl.constexpr,
    num_channels: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Update nu by a row of the results, unless a channel of it is not finite."""
    each = tl.arange(0, BLOCK_C)
    new = load_per_channel(out_ptr, row, each, num_channels)
    tl.store(nu_ptr + each, new, mask=(each < num_channels) & all_finite(new))


# --- PowerNorm after its warm-up: one pass in each direction --------------------------------------


@kernel
def running_map_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    valid_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    y_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Store y = gamma u / psi + beta, and sums (k = 2): u^2 and n over V; psi^2 + eps in numbers.

    numbers: (3, C), of which this is the first row.
    """
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    square = tl.load(running_square_ptr + cols, mask=col_mask, other=1) + eps
    gain = (tl.load(weight_ptr + cols, mask=col_mask, other=0) / tl.sqrt(square))[None, :]
    offset = tl.load(bias_ptr + cols, mask=col_mask, other=0)[None, :]
    if tl.program_id(0) == 0:
        tl.store(numbers_ptr + cols, square, mask=col_mask)
    squares = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    count = tl.zeros((BLOCK_M,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        offsets = rows[:, None] * num_channels + cols[None, :]
        u = tl.load(x_ptr + offsets, mask=valid[:, None] & col_mask[None, :], other=0).to(
            tl.float32
        )
        if rstd_ptr is not None:
            rstd = 1.0 / tl.sqrt(tl.sum(u * u, 1) / group_size + eps)
            rstd = tl.where(valid, rstd, 0.0)
            tl.store(rstd_ptr + rows * tl.num_programs(1) + tl.program_id(1), rstd, mask=row_mask)
            u = u * rstd[:, None]
        y = tl.where(valid[:, None], u * gain + offset, offset)
        tl.store(y_ptr + offsets, y, mask=row_mask[:, None] & col_mask[None, :])
        squares += u * u
        count += valid.to(tl.float32)
    store_partial_sum(partial_sums_ptr, 0, 2, squares, cols, col_mask, num_channels)
    number = tl.zeros((BLOCK_N,), tl.float32) + tl.sum(count, 0)
    store_per_channel(partial_sums_ptr, 1, 2, number, cols, col_mask, num_channels)


@kernel
def finish_running_map_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    numbers_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    ticket_ptr: tl.tensor,
    share: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Store psi_B^2 and n in the other rows of numbers, (3, C), and update psi^2 if it is given."""
    cols, _ = channels_of(num_channels, BLOCK_N)
    squares = sum_of_kind(partial_sums_ptr, 0, 2, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    number = sum_of_kind(partial_sums_ptr, 1, 2, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    store_rows(numbers_ptr, 1, squares / tl.maximum(number, 1.0), cols, num_channels)
    store_rows(numbers_ptr, 2, number, cols, num_channels)
    if running_square_ptr is not None:  # noqa: SIM102
        if is_last(ticket_ptr):
            each = tl.arange(0, BLOCK_C)
            some = tl.load(numbers_ptr + 2 * num_channels) > 0
            value = load_per_channel(numbers_ptr, 1, each, num_channels)
            update_average(running_square_ptr, value, share, some, each, num_channels)


@kernel
def running_gradient_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    dy_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    valid_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    nu_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    scale: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Store dx of Algorithm 2, and sums (k = 2): dy over all rows, dy u over V."""
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    square = tl.load(numbers_ptr + cols, mask=col_mask, other=1)
    dy_coef = (tl.load(weight_ptr + cols, mask=col_mask, other=0) / tl.sqrt(square))[None, :]
    u_coef = (-tl.load(nu_ptr + cols, mask=col_mask, other=0) * scale / square)[None, :]
    dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    with_u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        valid = load_valid(valid_ptr, rows, row_mask)
        u, dy, rstd = load_tile(
            x_ptr, dy_ptr, rstd_ptr, rows, row_mask, valid, cols, col_mask, num_channels
        )
        dbias += dy
        dy = tl.where(valid[:, None], dy, 0.0)
        with_u += dy * u
        dx = dy_coef * dy + u_coef * u
        if rstd_ptr is not None:
            dx = (dx - u * (tl.sum(dx * u, 1) / group_size)[:, None]) * rstd[:, None]
        dx = tl.where(valid[:, None], dx, 0.0)
        offsets = rows[:, None] * num_channels + cols[None, :]
        tl.store(dx_ptr + offsets, dx, mask=row_mask[:, None] & col_mask[None, :])
    store_partial_sum(partial_sums_ptr, 0, 2, dbias, cols, col_mask, num_channels)
    store_partial_sum(partial_sums_ptr, 1, 2, with_u, cols, col_mask, num_channels)


@kernel
def finish_running_gradient_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    nu_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    ticket_ptr: tl.tensor,
    step: tl.tensor,
    scale: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    """Store sum_N dy, sum_V dy x_hat and the next nu, (3, C), and update nu."""
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    dbias = sum_of_kind(partial_sums_ptr, 0, 2, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    with_u = sum_of_kind(partial_sums_ptr, 1, 2, programs, cols, num_channels, BLOCK_N, BLOCK_P)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    square = tl.load(numbers_ptr + cols, mask=col_mask, other=1)
    gamma = load_per_channel(numbers_ptr, 1, cols, num_channels) / square
    n = tl.maximum(tl.load(numbers_ptr + 2 * num_channels), 1.0)
    dweight = with_u / tl.sqrt(square)
    lambda_ = tl.load(weight_ptr + cols, mask=col_mask, other=0) * dweight / n / scale
    store_rows(out_ptr, 0, dbias, cols, num_channels)
    store_rows(out_ptr, 1, dweight, cols, num_channels)
    store_next_nu(nu_ptr, gamma, lambda_, step, out_ptr, 2, cols, num_channels)
    if is_last(ticket_ptr):
        keep_finite_nu(nu_ptr, out_ptr, 2, num_channels, BLOCK_C)


# --- whole norms ----------------------------------------------------------------------------------


@functools.cache
def _ticket(device: int, stream: int) -> Tensor:
    """Return the ticket of the kernels of a stream, which run one after the other."""
    on = "cpu" if device < 0 else f"cuda:{device}"
    return torch.zeros(1, dtype=torch.int32, device=on)


def ticket_for(x: Tensor) -> Tensor:
    """Return the ticket for a kernel on the current stream of the device of ``x``."""
    device = x.get_device()
    return _ticket(device, torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0)


@functools.cache
def _finishing(channels: int) -> tuple[tuple[int, int, int], tuple[int, int, int, int]]:
    """Return the grid and the first constants of finishing kernels."""
    most = triton.next_power_of_2(channels)
    block_n = min(CHANNELS_A_PROGRAM, most)
    grid = (triton.cdiv(channels, block_n), 1, 1)
    return grid, (channels, block_n, PROGRAMS_AT_ONCE, most)


def finish(function: Any, sums: Tensor, *args: Any, constants: tuple[Any, ...] = ()) -> None:
    """Run a finishing kernel on the sums of all programs, (programs, kinds, C)."""
    grid, first = _finishing(sums.size(2))
    launch(function, sums, grid, (sums, sums.size(0), *args), (*first, *constants), WARPS)


def batch_norm_forward(
    x: Tensor,
    valid: Tensor | None,
    groups: int,
    eps: float,
    center: bool,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_square: Tensor | None,
    share: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Normalize by the batch's own statistics; update the running ones by them, if given.

    Args:
        x: (N, C).
        weight, bias: (C,).
        running_mean: (C,), float32; only with ``center`` and ``running_square``.
        running_square: (C,), float32: of the variance, or of the mean square.
        share: the weight of this batch in the running statistics.

    Returns:
        y; mean, variance or mean square, 1 / its root, the gain and n, (5, C); and the rstd. The
        mean is meaningful only with ``center``.
    """
    sums, rstd = partial_moments(x, valid, groups, eps, center)
    numbers = sums.new_empty((5, x.size(1)))
    ticket = None if running_square is None else ticket_for(x)
    finish(
        finish_moments_kernel,
        *(sums, weight, numbers, running_mean, running_square, ticket, float(share), float(eps)),
        constants=(center,),
    )
    shift = numbers if center else None  # its first row
    y, rstd, _ = mapped(x, rstd, valid, groups, eps, shift, numbers[3], bias, bias, False)
    return y, numbers, rstd


def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    center: bool,
    numbers: Tensor,
    weight: Tensor,
    pull_constant: Tensor | None,
    pull_u_coef: Tensor | None,
    nu: Tensor | None,
    step: float,
    scale: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Return dx, and in rows sum_N dy, sum_V dy x_hat, and others, (7, C).

    Args:
        dy, x: (N, C).
        rstd, numbers: of ``batch_norm_forward``.
        weight: (C,).
        pull_constant, pull_u_coef: (C,), what else is added to c and b of du; both or neither.
        nu: (C,), float32, updated; None: there is none.
        step: 1 - a_b.
        scale: the factor of the loss, by which Lambda is divided; a number or ().
    """
    sums = partial_products(dy, x, rstd, valid, numbers if center else None)
    out = sums.new_empty((7, x.size(1)))
    number, pointer = _number_or_pointer(scale)
    ticket = None if nu is None else ticket_for(x)
    finish(
        finish_products_kernel,
        *(sums, numbers, weight, pull_constant, pull_u_coef, out, nu, pointer, ticket),
        *(float(step), number),
    )
    x, dy, dx = aligned(x), aligned(dy), torch.empty_like(x)
    tiles = tiling(x.size(1), 0 if rstd is None else rstd.size(1))
    shift, constant = (numbers, out[3]) if center else (None, None)
    args = (dy, rstd, as_bytes(valid), shift, out[2], constant, out[4], dx, None)
    launch_pass(gradient_kernel, x, tiles, num_tiles(x, tiles), *args)
    return dx, out


def _number_or_pointer(scale: float | Tensor) -> tuple[float, Tensor | None]:
    if isinstance(scale, Tensor):
        return 1.0, scale.to(torch.float32)
    return float(scale), None


def running_norm_forward(
    x: Tensor,
    valid: Tensor | None,
    groups: int,
    eps: float,
    psi2: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_square: Tensor | None,
    share: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Divide by sqrt(psi2 + eps); update the running psi^2 by this batch, if given.

    Args:
        x: (N, C).
        psi2: (C,), float32, before this batch; it may be ``running_square``.
        weight, bias: (C,).
        running_square: (C,), float32.
        share: the weight of this batch in it.

    Returns:
        y; psi2 + eps, psi_B^2 and n, (3, C); and the rstd.
    """
    check(x, valid=valid)
    x = aligned(x)
    tiles = tiling(x.size(1), groups)
    programs = num_programs(x, tiles)
    y, rstd, sums = torch.empty_like(x), empty_rstd(x, groups), empty_partial_sums(x, programs, 2)
    numbers = sums.new_empty((3, x.size(1)))
    args = (as_bytes(valid), rstd, psi2, weight, bias, y, sums, numbers, float(eps))
    launch_pass(running_map_kernel, x, tiles, programs, *args)
    ticket = None if running_square is None else ticket_for(x)
    finish(finish_running_map_kernel, sums, numbers, running_square, ticket, float(share))
    return y, numbers, rstd


def running_norm_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    numbers: Tensor,
    weight: Tensor,
    nu: Tensor,
    step: float,
    scale: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Return dx, and in rows sum_N dy, sum_V dy x_hat and the next nu, (3, C); update nu.

    Args:
        dy, x: (N, C).
        rstd, numbers: of ``running_norm_forward``.
        weight, nu, step, scale: as in ``batch_norm_backward``.
    """
    check(x, dy, valid)
    x, dy = aligned(x), aligned(dy)
    tiles = tiling(x.size(1), 0 if rstd is None else rstd.size(1))
    programs = num_programs(x, tiles)
    dx, sums = torch.empty_like(x), empty_partial_sums(x, programs, 2)
    number, pointer = _number_or_pointer(scale)
    args = (dy, rstd, as_bytes(valid), numbers, weight, nu, pointer, dx, sums, number)
    launch_pass(running_gradient_kernel, x, tiles, programs, *args)
    out = sums.new_empty((3, x.size(1)))
    finish(
        finish_running_gradient_kernel,
        *(sums, numbers, weight, out, nu, pointer, ticket_for(x), float(step), number),
    )
    return dx, out


# --- for norms whose other work per channel is torch's --------------------------------------------


@kernel
def running_average_kernel(
    buffer_ptr: tl.tensor,
    value_ptr: tl.tensor,
    count_ptr: tl.tensor,
    share: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Update a running statistic; see ``update_average``."""
    cols = tl.arange(0, BLOCK_N)
    value = load_per_channel(value_ptr, 0, cols, num_channels)
    update_average(buffer_ptr, value, share, tl.load(count_ptr) > 0, cols, num_channels)


@kernel
def nu_kernel(
    nu_ptr: tl.tensor,
    gamma_ptr: tl.tensor,
    lambda_ptr: tl.tensor,
    step_ptr: tl.tensor,
    step: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Store nu (1 - step Gamma) + step Lambda, unless that is not finite."""
    cols = tl.arange(0, BLOCK_N)
    if step_ptr is not None:
        step = tl.load(step_ptr)
    nu = load_per_channel(nu_ptr, 0, cols, num_channels)
    gamma = load_per_channel(gamma_ptr, 0, cols, num_channels)
    new = nu * (1 - step * gamma) + step * load_per_channel(lambda_ptr, 0, cols, num_channels)
    tl.store(nu_ptr + cols, new, mask=(cols < num_channels) & all_finite(new))


def _on_all_channels(function: Any, buffer: Tensor, *args: Any) -> None:
    """Run a kernel on one program, which sees every number of ``buffer``, (C,)."""
    channels = buffer.numel()
    constants = (channels, triton.next_power_of_2(channels))
    launch(function, buffer, (1, 1, 1), (buffer, *args), constants, WARPS)


def update_running_average(buffer: Tensor, value: Tensor, weight: float, count: Tensor) -> None:
    """Compute :meth:`Ops.update_running_average`."""
    value = aligned(value.contiguous())
    _on_all_channels(running_average_kernel, buffer, value, count, float(weight))


def update_nu(nu: Tensor, gamma: Tensor, lambda_: Tensor, step: float | Tensor) -> None:
    """Compute nu <- nu (1 - step Gamma) + step Lambda, unless that is not finite.

    nu, Gamma, Lambda: (C,), float32; step: a number or ().
    """
    number, pointer = _number_or_pointer(step)
    gamma, lambda_ = aligned(gamma.contiguous()), aligned(lambda_.contiguous())
    _on_all_channels(nu_kernel, nu, gamma, lambda_, pointer, number)
