"""Norms by statistics over positions: what is computed per channel, and whole norms.

A pass over memory stores the partial sums of each of its programs. A finishing kernel adds them in
a fixed order, so that equal inputs give bit-equal results; the last of its programs sees all
channels, and computes all that is per channel, running statistics included. The rows of ``numbers``
are those of ``passes.Row``. Kernels of one stream run one after the other, so a pass may read a
running statistic that the finishing kernel after it updates.
"""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.passes import BatchRule, Exchange, Row, RunningRule, WindowRule
from norm_plugin.kernels.triton.columns import (
    column_gradient,
    column_moments,
    map_columns,
    merge_programs,
    partial_products,
)
from norm_plugin.kernels.triton.replay import replayed
from norm_plugin.kernels.triton.tiles import (
    CHANNELS_A_PROGRAM,
    FEW_WARPS,
    PROGRAMS_AT_ONCE,
    empty,
    kernel,
    launch,
    load_kind,
    rows_of,
    store_row,
    store_sum,
    ticket_for,
)

CHANNELS_A_WARP = 256
"""The size of the last program, which sees all channels."""

MEAN, SQUARE, UNIT, GAIN, COUNT, DIVISOR, CONSTANT, U_COEF, OFFSET = map(tl.constexpr, Row)
OUTLIER = CONSTANT
GRADIENTS = 5
"""The rows of what a finishing kernel stores in a backward pass, (5, C): these, of all workers."""
DBIAS, DWEIGHT, DU_CONSTANT, DU_U_COEF, DETA = map(tl.constexpr, range(GRADIENTS))


@triton.jit
def load_row(
    rows_ptr: tl.tensor, row: tl.tensor, cols: tl.tensor, num_channels: tl.constexpr
) -> tl.tensor:
    """Load one row of (rows, C); 0 beyond the last channel."""
    return tl.load(rows_ptr + row * num_channels + cols, mask=cols < num_channels, other=0.0)


# --- sums of the programs of a pass ---------------------------------------------------------------


@triton.jit
def store_merged_moments(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    numbers_ptr: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Store the mean, sum (u - mean)^2 and n of all programs, as Chan, Golub and LeVeque 1983."""
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    counts = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        count = load_kind(partial_sums_ptr, 2, 3, first, programs, cols, num_channels, BLOCK_P)
        part = load_kind(partial_sums_ptr, 0, 3, first, programs, cols, num_channels, BLOCK_P)
        counts += count
        sums += part * count
    number = tl.sum(counts, 0)
    mean = tl.sum(sums, 0) / tl.maximum(number, 1.0)
    squares = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        count = load_kind(partial_sums_ptr, 2, 3, first, programs, cols, num_channels, BLOCK_P)
        part = load_kind(partial_sums_ptr, 0, 3, first, programs, cols, num_channels, BLOCK_P)
        squares += load_kind(partial_sums_ptr, 1, 3, first, programs, cols, num_channels, BLOCK_P)
        gap = part - mean[None, :]
        # Multiply by the count first: it may be 0 where the square is beyond float32
        squares += gap * (gap * count)
    store_row(numbers_ptr, MEAN, mean, cols, num_channels)
    store_row(numbers_ptr, SQUARE, tl.sum(squares, 0), cols, num_channels)
    store_row(numbers_ptr, COUNT, number, cols, num_channels)


@triton.jit
def is_last(ticket_ptr: tl.tensor) -> tl.tensor:
    """Return whether all other programs have come here; then all that they stored is visible.

    The ticket is 0 before and after the kernel.
    """
    tl.debug_barrier()
    last = tl.atomic_add(ticket_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1
    tl.store(ticket_ptr, 0, mask=last)
    return last


# --- in the last program, on all channels: (BLOCK_C,) ---------------------------------------------


@triton.jit
def all_finite(values: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return whether no entry in the mask is NaN or infinite."""
    return tl.min(((tl.abs(values) < float("inf")) | ~mask).to(tl.int32), 0) == 1


@triton.jit
def update_average(
    buffer_ptr: tl.tensor,
    value: tl.tensor,
    share: tl.tensor,
    count: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> tl.tensor:
    """Update a running statistic as ``norms/base/means.py`` does, from the nearer end; return it.

    It does not change if a channel is not finite, or if ``count``, (), is 0.
    """
    mask = cols < num_channels
    old = tl.load(buffer_ptr + cols, mask=mask, other=0)
    new = tl.where(share < 0.5, old + share * (value - old), value - (1 - share) * (value - old))
    new = tl.where(all_finite(value, mask) & (count > 0), new, old)
    tl.store(buffer_ptr + cols, new, mask=mask)
    return new


@triton.jit
def update_nu(
    nu_ptr: tl.tensor,
    gamma: tl.tensor,
    lambda_: tl.tensor,
    step: tl.tensor,
    some: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store nu (1 - step Gamma) + step Lambda, if ``some`` and no channel of it is not finite."""
    mask = cols < num_channels
    new = load_row(nu_ptr, 0, cols, num_channels) * (1 - step * gamma) + step * lambda_
    tl.store(nu_ptr + cols, new, mask=mask & (all_finite(new, mask) & some))


# --- by the batch's own statistics ----------------------------------------------------------------


@kernel
def finish_batch_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    ticket_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    eta_ptr: tl.tensor,
    running_mean_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    rows: tl.tensor,
    share: tl.tensor,
    eps: tl.tensor,
    lambda_mean: tl.tensor,
    lambda_std: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    center: tl.constexpr,
    over_padding: tl.constexpr,
    penalty: tl.constexpr,
    per_token: tl.constexpr,
) -> None:
    """Compute ``numbers`` from the sums of ``moments_kernel``; update the running statistics.

    rows: N, as a float.
    """
    if center:
        store_merged_moments(
            partial_sums_ptr, programs, numbers_ptr, num_channels, BLOCK_N, BLOCK_P
        )
    else:
        store_sum(
            partial_sums_ptr, 1, 3, programs, numbers_ptr, SQUARE, num_channels, BLOCK_N, BLOCK_P
        )
        store_sum(
            partial_sums_ptr, 2, 3, programs, numbers_ptr, COUNT, num_channels, BLOCK_N, BLOCK_P
        )
    if is_last(ticket_ptr):
        cols = tl.arange(0, BLOCK_C)
        count = tl.load(numbers_ptr + COUNT * num_channels)
        divisor = tl.maximum(count, 1.0)
        if over_padding:
            divisor = tl.maximum(rows, 1.0)
        square = load_row(numbers_ptr, SQUARE, cols, num_channels) / divisor
        unit = 1.0 / tl.sqrt(square + eps)
        gain = load_row(weight_ptr, 0, cols, num_channels) * unit
        mean = tl.zeros((BLOCK_C,), tl.float32)
        if center:
            mean = load_row(numbers_ptr, MEAN, cols, num_channels)
        if eta_ptr is not None:
            eta = tl.load(eta_ptr)
            gain += eta
            offset = load_row(bias_ptr, 0, cols, num_channels) + eta * mean
            store_row(numbers_ptr, OFFSET, offset, cols, num_channels)
        store_row(numbers_ptr, SQUARE, square, cols, num_channels)
        store_row(numbers_ptr, UNIT, unit, cols, num_channels)
        store_row(numbers_ptr, GAIN, gain, cols, num_channels)
        store_row(numbers_ptr, DIVISOR, divisor, cols, num_channels)
        if running_square_ptr is not None:
            old_square = load_row(running_square_ptr, 0, cols, num_channels)
            kept = square
            if over_padding:
                kept = square * (rows / tl.maximum(rows - 1.0, 1.0))
            new_square = update_average(running_square_ptr, kept, share, count, cols, num_channels)
            if running_mean_ptr is not None:
                old_mean = load_row(running_mean_ptr, 0, cols, num_channels)
                new_mean = update_average(running_mean_ptr, mean, share, count, cols, num_channels)
                if penalty == "variances":
                    gap = square - new_square
                    slope = (gap > 0).to(tl.float32) - (gap < 0).to(tl.float32)
                    apart = mean - new_mean
                if penalty == "deviations":
                    slope = 1 - tl.sqrt((old_square + eps) / (square + eps))
                    apart = mean - old_mean
                if penalty != "":
                    weight = 1 / tl.maximum(count, 1.0)
                    if per_token:
                        weight = 1.0
                    weight = tl.where(count > 0, weight, 0.0)
                    constant, u_coef = 2 * lambda_mean * apart, 2 * lambda_std * slope
                    store_row(numbers_ptr, CONSTANT, constant * weight, cols, num_channels)
                    store_row(numbers_ptr, U_COEF, u_coef * weight, cols, num_channels)


@kernel
def finish_batch_gradient_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    ticket_ptr: tl.tensor,
    out_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    nu_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    step: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    kinds: tl.constexpr,
    penalized: tl.constexpr,
    with_eta: tl.constexpr,
) -> None:
    """Compute the rows of gradients from the three sums of ``products_kernel``, or of parameters
    from the two of ``gradient_kernel``, which has computed dx; update nu if given."""
    store_sum(partial_sums_ptr, 0, kinds, programs, out_ptr, DBIAS, num_channels, BLOCK_N, BLOCK_P)
    last: tl.constexpr = kinds - 1
    store_sum(
        partial_sums_ptr, last, kinds, programs, out_ptr, DWEIGHT, num_channels, BLOCK_N, BLOCK_P
    )
    if kinds == 3:
        store_sum(
            partial_sums_ptr, 1, 3, programs, out_ptr, DU_CONSTANT, num_channels, BLOCK_N, BLOCK_P
        )
    if is_last(ticket_ptr):
        cols = tl.arange(0, BLOCK_C)
        scale = tl.load(scale_ptr)
        dy_u = load_row(out_ptr, DWEIGHT, cols, num_channels)
        unit = load_row(numbers_ptr, UNIT, cols, num_channels)
        weight = load_row(weight_ptr, 0, cols, num_channels)
        count = tl.load(numbers_ptr + COUNT * num_channels)
        divisor = tl.load(numbers_ptr + DIVISOR * num_channels)
        product = weight * dy_u * unit
        if kinds == 3:
            valid_dy = load_row(out_ptr, DU_CONSTANT, cols, num_channels)
            constant = -weight * unit * valid_dy / tl.maximum(count, 1.0)
            u_coef = -product / divisor * unit * unit
            if penalized:
                constant += load_row(numbers_ptr, CONSTANT, cols, num_channels) * scale
                u_coef += load_row(numbers_ptr, U_COEF, cols, num_channels) * scale
            if with_eta:
                mean = load_row(numbers_ptr, MEAN, cols, num_channels)
                tl.store(out_ptr + DETA * num_channels, tl.sum(dy_u + mean * valid_dy, 0))
        tl.debug_barrier()  # all sums are read
        store_row(out_ptr, DWEIGHT, dy_u * unit, cols, num_channels)
        if kinds == 3:
            store_row(out_ptr, DU_CONSTANT, constant, cols, num_channels)
            store_row(out_ptr, DU_U_COEF, u_coef, cols, num_channels)
        if nu_ptr is not None:
            gamma = load_row(numbers_ptr, SQUARE, cols, num_channels) * unit * unit
            lambda_ = product / divisor / scale
            update_nu(nu_ptr, gamma, lambda_, step, count > 0, cols, num_channels)


# --- PowerNorm by its running statistics ----------------------------------------------------------


@kernel
def finish_running_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    ticket_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    square_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    rows: tl.tensor,
    share: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    released: tl.constexpr,
    in_warmup: tl.constexpr,
) -> None:
    """Compute ``numbers`` from the sums of ``map_kernel``; update psi^2 if it is given.

    square: psi^2 before this batch; rows: N, as a float.
    """
    store_sum(partial_sums_ptr, 0, 3, programs, numbers_ptr, SQUARE, num_channels, BLOCK_N, BLOCK_P)
    store_sum(partial_sums_ptr, 1, 3, programs, numbers_ptr, MEAN, num_channels, BLOCK_N, BLOCK_P)
    store_sum(partial_sums_ptr, 2, 3, programs, numbers_ptr, COUNT, num_channels, BLOCK_N, BLOCK_P)
    if is_last(ticket_ptr):
        cols = tl.arange(0, BLOCK_C)
        before = load_row(square_ptr, 0, cols, num_channels)
        count = tl.load(numbers_ptr + COUNT * num_channels)
        squares = load_row(numbers_ptr, SQUARE, cols, num_channels)
        divisor = tl.maximum(count, 1.0)
        batch = squares / divisor
        unit = 1.0 / tl.sqrt(before + eps)
        back = unit
        if released:
            squares += load_row(numbers_ptr, MEAN, cols, num_channels)  # at padding
            divisor = tl.maximum(rows, 1.0)
            back = 1.0 / tl.sqrt(tl.where(count > 0, batch, before) + eps)
            if in_warmup:
                unit = back
        gain = load_row(weight_ptr, 0, cols, num_channels) * back
        store_row(numbers_ptr, SQUARE, squares / divisor, cols, num_channels)
        store_row(numbers_ptr, UNIT, unit, cols, num_channels)
        store_row(numbers_ptr, GAIN, gain, cols, num_channels)
        store_row(numbers_ptr, DIVISOR, divisor, cols, num_channels)
        store_row(numbers_ptr, U_COEF, unit * back, cols, num_channels)
        if running_square_ptr is not None:
            update_average(running_square_ptr, batch, share, count, cols, num_channels)


# --- by windows over batches ----------------------------------------------------------------------


@triton.jit
def push(
    window_ptr: tl.tensor,
    filled_ptr: tl.tensor,
    value: tl.tensor,
    count: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
    window: tl.constexpr,
) -> tl.tensor:
    """Append ``value`` to (M, C) and drop the oldest, as ``norms/base/window.py``; return how many
    rows are filled."""
    filled = tl.load(filled_ptr)
    finite = all_finite(value, cols < num_channels)
    some = (finite | (filled > 0)) & (count > 0)  # the interpreter wants numbers last
    value = tl.where(finite, value, load_row(window_ptr, window - 1, cols, num_channels))
    for row in range(window):
        moved = value
        if row < window - 1:
            moved = load_row(window_ptr, row + 1, cols, num_channels)
        tl.debug_barrier()
        tl.store(window_ptr + row * num_channels + cols, moved, mask=(cols < num_channels) & some)
    filled = tl.minimum(filled + some.to(tl.int64), window)
    tl.store(filled_ptr, filled)
    tl.debug_barrier()
    return filled


@triton.jit
def window_mean(
    window_ptr: tl.tensor,
    filled: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
    window: tl.constexpr,
    geometric: tl.constexpr,
) -> tl.tensor:
    """Return the mean of the filled rows."""
    total = tl.zeros(cols.shape, tl.float32)
    for row in range(window):
        value = load_row(window_ptr, row, cols, num_channels)
        if geometric:
            value = tl.log(value)
        total += tl.where(row >= window - filled, value, 0.0)
    mean = total / tl.maximum(filled, 1).to(tl.float32)
    if geometric:
        mean = tl.exp(mean)
    return mean


@triton.jit
def variance_of_roots(
    window_ptr: tl.tensor, cols: tl.tensor, num_channels: tl.constexpr, window: tl.constexpr
) -> tl.tensor:
    """Return the unbiased variance of the roots of all entries of (M, C)."""
    total = tl.zeros(cols.shape, tl.float32)
    for row in range(window):
        total += tl.sqrt(load_row(window_ptr, row, cols, num_channels))
    mean = tl.sum(total, 0) / (window * num_channels)
    total = tl.zeros(cols.shape, tl.float32)
    for row in range(window):
        gap = tl.sqrt(load_row(window_ptr, row, cols, num_channels)) - mean
        total += tl.where(cols < num_channels, gap * gap, 0.0)
    return tl.sum(total, 0) / (window * num_channels - 1)


@kernel
def finish_window_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    ticket_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    window_ptr: tl.tensor,
    filled_ptr: tl.tensor,
    running_square_ptr: tl.tensor,
    share: tl.tensor,
    eps: tl.tensor,
    limit: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    window: tl.constexpr,
    geometric: tl.constexpr,
    in_warmup: tl.constexpr,
    outlier_skip: tl.constexpr,
) -> None:
    """Compute ``numbers`` from the sums of ``moments_kernel``; update the window and s^2."""
    store_sum(partial_sums_ptr, 1, 3, programs, numbers_ptr, SQUARE, num_channels, BLOCK_N, BLOCK_P)
    store_sum(partial_sums_ptr, 2, 3, programs, numbers_ptr, COUNT, num_channels, BLOCK_N, BLOCK_P)
    if is_last(ticket_ptr):
        cols = tl.arange(0, BLOCK_C)
        mask = cols < num_channels
        count = tl.load(numbers_ptr + COUNT * num_channels)
        square = load_row(numbers_ptr, SQUARE, cols, num_channels) / tl.maximum(count, 1.0)
        running = load_row(running_square_ptr, 0, cols, num_channels)
        skips: tl.constexpr = outlier_skip and not in_warmup
        if skips:
            full = tl.load(filled_ptr) == window
            spread = variance_of_roots(window_ptr, cols, num_channels, window)
        filled = push(window_ptr, filled_ptr, square, count, cols, num_channels, window)
        used = square
        if not in_warmup:
            used = window_mean(window_ptr, filled, cols, num_channels, window, geometric)
        outlier = count < 0
        if skips:
            gap = window_mean(window_ptr, filled, cols, num_channels, window, False) - used
            beyond = tl.max(((gap > window * spread) & mask).to(tl.int32), 0) > 0
            outlier = full & beyond & (count > 0)
            last = window_ptr + (window - 1) * num_channels + cols
            tl.store(last, running, mask=mask & outlier)
            used = tl.where(outlier, square, used)
        root = tl.sqrt(used + eps)
        if in_warmup:
            limit = 1.0
        ratio = tl.minimum(tl.maximum(root / tl.sqrt(running + eps), 1 / limit), limit)
        weight = load_row(weight_ptr, 0, cols, num_channels)
        store_row(numbers_ptr, UNIT, ratio / root, cols, num_channels)
        store_row(numbers_ptr, GAIN, weight * ratio / root, cols, num_channels)
        store_row(numbers_ptr, U_COEF, 1 / (root * root), cols, num_channels)
        store_row(numbers_ptr, OUTLIER, outlier.to(tl.float32), cols, num_channels)
        update_average(running_square_ptr, used, share, count, cols, num_channels)


@kernel
def finish_window_gradient_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    ticket_ptr: tl.tensor,
    out_ptr: tl.tensor,
    numbers_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    window_ptr: tl.tensor,
    filled_ptr: tl.tensor,
    psi_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    share: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    window: tl.constexpr,
    in_warmup: tl.constexpr,
) -> None:
    """Compute the rows of gradients from the sums of ``products_kernel``; update window and psi."""
    store_sum(partial_sums_ptr, 0, 3, programs, out_ptr, DBIAS, num_channels, BLOCK_N, BLOCK_P)
    store_sum(partial_sums_ptr, 2, 3, programs, out_ptr, DWEIGHT, num_channels, BLOCK_N, BLOCK_P)
    if is_last(ticket_ptr):
        cols = tl.arange(0, BLOCK_C)
        scale = tl.load(scale_ptr)
        dy_u = load_row(out_ptr, DWEIGHT, cols, num_channels)
        unit = load_row(numbers_ptr, UNIT, cols, num_channels)
        count = tl.load(numbers_ptr + COUNT * num_channels)
        outlier = tl.load(numbers_ptr + OUTLIER * num_channels) > 0
        weight = load_row(weight_ptr, 0, cols, num_channels)
        tl.debug_barrier()  # all sums are read
        store_row(out_ptr, DWEIGHT, dy_u * unit, cols, num_channels)
        g_mean = weight * dy_u * unit / tl.maximum(count, 1.0) / scale
        entering = g_mean
        if psi_ptr is not None:
            entering = tl.where(outlier, load_row(psi_ptr, 0, cols, num_channels), g_mean)
        filled = push(window_ptr, filled_ptr, entering, count, cols, num_channels, window)
        psi = g_mean
        if not in_warmup:
            smoothed = window_mean(window_ptr, filled, cols, num_channels, window, False)
            psi = tl.where(outlier, g_mean, smoothed)
        if psi_ptr is not None:
            kept = update_average(psi_ptr, psi, share, count, cols, num_channels)
            if not in_warmup:
                psi = tl.where(outlier, g_mean, kept)
        u_coef = -psi * scale * load_row(numbers_ptr, U_COEF, cols, num_channels)
        store_row(out_ptr, DU_U_COEF, u_coef, cols, num_channels)


# --- whole norms ----------------------------------------------------------------------------------


@functools.cache
def _finishing(channels: int) -> tuple[tuple[int, int, int], tuple[int, int, int, int], int]:
    """Return the grid, the first constants and the warps of finishing kernels."""
    most = triton.next_power_of_2(channels)
    block_n = min(CHANNELS_A_PROGRAM, most)
    grid = (triton.cdiv(channels, block_n), 1, 1)
    return (
        grid,
        (channels, block_n, PROGRAMS_AT_ONCE, most),
        min(max(most // CHANNELS_A_WARP, FEW_WARPS), 16),
    )


def finish(function: Any, sums: Tensor, *args: Any, constants: tuple[Any, ...] = ()) -> None:
    """Run a finishing kernel on the sums of all programs or workers, (programs, kinds, C)."""
    grid, first, warps = _finishing(sums.size(2))
    given = (sums, sums.size(0), ticket_for(sums), *args)
    launch(function, sums, grid, given, (*first, *constants), warps)


def of_all_workers(sums: Tensor, exchange: Exchange) -> tuple[Tensor, Tensor | None]:
    """Return the sums of each program of this worker, or of each worker, and then its own too."""
    if exchange is None:
        return sums, None
    own = sums.sum(0, keepdim=True)
    return exchange(own), own[0]


def own_gradients(own: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of bias and weight, those of this worker's loss.

    Args:
        own: (k, C), its sums: dy over all rows first, dy (u - mean) over V last.
    """
    return own[0], own[-1] * numbers[Row.UNIT]


@replayed(7)
def batch_forward(
    x: Tensor,
    valid: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eta: Tensor | None,
    running_mean: Tensor | None,
    running_square: Tensor | None,
    share: float,
    rule: BatchRule,
    exchange: Exchange,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return y = gamma x_hat + beta + eta u, ``numbers`` and the rstd.

    Args:
        eta: (1,), only with centering; None: 0.
        running_mean, running_square: (C,), updated if given: see ``norms/base/means.py``.
        share: the weight of this batch in them.
    """
    groups, eps, center, over_padding, penalty, per_token, lambda_mean, lambda_std = rule
    sums, rstd = column_moments(x, valid, groups, eps, center)
    if exchange is not None:
        sums = exchange(merge_programs(sums) if center else sums.sum(0, keepdim=True))
    numbers = empty(x, len(Row), x.size(-1))
    finish(
        finish_batch_kernel,
        *(sums, numbers, weight, bias, eta, running_mean, running_square, float(rows_of(x))),
        *(float(share), float(eps), float(lambda_mean), float(lambda_std)),
        constants=(center, over_padding, penalty, per_token),
    )
    shift = numbers if center else None  # its first row
    offset = bias if eta is None else numbers[Row.OFFSET]
    y, rstd, _ = map_columns(x, rstd, valid, groups, eps, shift, numbers[Row.GAIN], offset, bias)
    return y, numbers, rstd


@replayed(8)
def batch_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    numbers: Tensor,
    weight: Tensor,
    nu: Tensor | None,
    scale: Tensor,
    step: float,
    with_eta: bool,
    rule: BatchRule,
    exchange: Exchange,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return dx and the gradients of weight, bias and eta, (1,).

    Args:
        nu: (C,), updated if given: see ``norms/power_norm.py``.
        scale: (), the loss scale.
        step: 1 - a_b.
    """
    shift = numbers if rule.center else None
    sums, own = of_all_workers(partial_products(dy, x, rstd, valid, shift), exchange)
    out = empty(x, GRADIENTS, x.size(-1))
    finish(
        finish_batch_gradient_kernel,
        *(sums, out, numbers, weight, nu, scale, float(step)),
        constants=(3, bool(rule.penalty), with_eta),
    )
    dbias, dweight, du_constant, u_coef, deta = out.unbind()
    if own is not None:
        dbias, dweight = own_gradients(own, numbers)
        deta = (own[2] + numbers[Row.MEAN] * own[1]).sum(0, keepdim=True)
    constant = du_constant if rule.center else None
    dx, _ = column_gradient(dy, x, rstd, valid, shift, numbers[Row.GAIN], constant, u_coef)
    return dx, dweight, dbias, deta[:1] if with_eta else None


@replayed(6)
def running_forward(
    x: Tensor,
    valid: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    psi2: Tensor,
    running_square: Tensor | None,
    share: float,
    rule: RunningRule,
    exchange: Exchange,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return y = gamma u / psi + beta, ``numbers`` and the rstd.

    Args:
        psi2: psi^2 before this batch, (C,); it may be ``running_square``.
        running_square, share: as in ``batch_forward``.
    """
    groups, eps, released, in_warmup = rule
    where = (valid, groups, eps, None)
    at_padding = None if released else bias
    y, rstd, partial_sums = map_columns(
        x, None, *where, weight, bias, at_padding, square=psi2, sums=True
    )
    assert partial_sums is not None
    sums, _ = of_all_workers(partial_sums, exchange)
    numbers = empty(x, len(Row), x.size(-1))
    finish(
        finish_running_kernel,
        *(sums, numbers, weight, psi2, running_square, float(rows_of(x)), float(share), float(eps)),
        constants=(released, in_warmup),
    )
    if in_warmup:  # psi_B is known only now
        y, rstd, _ = map_columns(x, rstd, *where, numbers[Row.GAIN], bias, at_padding)
    return y, numbers, rstd


@replayed(8)
def running_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    numbers: Tensor,
    weight: Tensor,
    nu: Tensor,
    scale: Tensor,
    step: float,
    rule: RunningRule,
    exchange: Exchange,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx and the gradients of weight and bias; update nu, as in ``batch_backward``.

    Args:
        valid: None for the released form, which masks no gradient.
    """
    dy_coef, u_coef = numbers[Row.GAIN], numbers[Row.U_COEF]
    dx, partial_sums = column_gradient(
        dy, x, rstd, valid, None, dy_coef, None, u_coef, nu, scale, sums=True
    )
    assert partial_sums is not None
    sums, own = of_all_workers(partial_sums, exchange)
    out = empty(x, 2, x.size(-1))
    finish(
        finish_batch_gradient_kernel,
        *(sums, out, numbers, weight, nu, scale, float(step)),
        constants=(2, False, False),
    )
    dbias, dweight = out.unbind() if own is None else own_gradients(own, numbers)
    return dx, dweight, dbias


@replayed(6)
def window_forward(
    x: Tensor,
    valid: Tensor | None,
    weight: Tensor,
    squares: Tensor,
    filled: Tensor,
    running_square: Tensor,
    share: float,
    rule: WindowRule,
    exchange: Exchange,
) -> Tensor:
    """Return ``numbers``, and update the window (M, C), its count () and the running s^2."""
    partial_sums, _ = column_moments(x, valid, 0, rule.eps, False)
    sums, _ = of_all_workers(partial_sums, exchange)
    numbers = empty(x, len(Row), x.size(-1))
    finish(
        finish_window_kernel,
        *(sums, numbers, weight, squares, filled, running_square),
        *(float(share), float(rule.eps), float(rule.limit)),
        constants=(squares.size(0), rule.geometric, rule.in_warmup, rule.outlier_skip),
    )
    return numbers


@replayed(9)
def window_backward(
    dy: Tensor,
    x: Tensor,
    valid: Tensor | None,
    numbers: Tensor,
    weight: Tensor,
    gradients: Tensor,
    filled: Tensor,
    psi: Tensor | None,
    scale: Tensor,
    share: float,
    rule: WindowRule,
    exchange: Exchange,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx and the gradients of weight and bias; update the window of gradients and psi.

    Args:
        psi: (C,), that of norms/unified_norm.py; None: the window's mean is used itself.
    """
    sums, own = of_all_workers(partial_products(dy, x, None, valid, None), exchange)
    out = empty(x, GRADIENTS, x.size(-1))
    finish(
        finish_window_gradient_kernel,
        *(sums, out, numbers, weight, gradients, filled, psi, scale, float(share)),
        constants=(gradients.size(0), rule.in_warmup),
    )
    dbias, dweight, _, u_coef, _ = out.unbind()
    if own is not None:
        dbias, dweight = own_gradients(own, numbers)
    dx, _ = column_gradient(dy, x, None, valid, None, numbers[Row.GAIN], None, u_coef)
    return dx, dweight, dbias
