"""Norms over the channels of one position, in Triton: a tile holds whole groups of channels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.passes import RowRule
from norm_plugin.kernels.triton.pointwise import value_of
from norm_plugin.kernels.triton.replay import replayed
from norm_plugin.kernels.triton.tiles import (
    add_partial_sums,
    aligned,
    check,
    empty,
    empty_like,
    empty_partial_sums,
    kernel,
    launch_pass,
    num_programs,
    num_tiles,
    program_cols,
    rows_of,
    store_partial_sum,
    tile_rows,
    tiling,
)


@triton.jit
def load_gain(
    weight_ptr: tl.tensor,
    cols: tl.tensor,
    col_mask: tl.tensor,
    num_channels: tl.constexpr,
    one_gain: tl.constexpr,
) -> tl.tensor:
    """Load the gain of each channel, (1, BLOCK_N)."""
    if one_gain:
        cols = cols * 0
    gain = tl.load(weight_ptr + cols, mask=col_mask, other=0)[None, :]
    return gain / num_channels**0.5 if one_gain else gain


@triton.jit
def load_channels(values_ptr: tl.tensor, cols: tl.tensor, col_mask: tl.tensor) -> tl.tensor:
    """Load a number per channel, (1, BLOCK_N)."""
    return tl.load(values_ptr + cols, mask=col_mask, other=0)[None, :]


@kernel
def forward_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    y_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    alpha_ptr: tl.tensor,
    b_ptr: tl.tensor,
    eps: tl.tensor,
    phi_scale: tl.tensor,
    phi_slope: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    released: tl.constexpr,
    has_phi: tl.constexpr,
    one_gain: tl.constexpr,
) -> None:
    """Store y, mean and rstd of RowRule for one tile."""
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    rows, row_mask = tile_rows(tl.program_id(0), num_rows, BLOCK_M)
    group_offsets = rows * tl.num_programs(1) + tl.program_id(1)
    offsets = rows[:, None] * num_channels + cols[None, :]
    mask = row_mask[:, None] & col_mask[None, :]
    z = tl.load(x_ptr + offsets, mask=mask, other=0).to(tl.float32)
    if alpha_ptr is not None:
        gate = value_of(tl.sum(z * load_channels(b_ptr, cols, col_mask), 1), False)[:, None]
    if mean_ptr is not None:
        mean = tl.sum(z, 1) / group_size
        tl.store(mean_ptr + group_offsets, mean, mask=row_mask)
        z = tl.where(col_mask[None, :], z - mean[:, None], 0.0)
    squares = tl.sum(z * z, 1)
    if released:
        rstd = 1.0 / (tl.sqrt(squares / (group_size - 1)) + eps)
    else:
        rstd = 1.0 / tl.sqrt(squares / group_size + eps)
    tl.store(rstd_ptr + group_offsets, rstd, mask=row_mask)
    z = z * rstd[:, None]
    if has_phi:
        z = phi_scale * (1.0 - phi_slope * z) * z
    if weight_ptr is not None:
        weight = load_gain(weight_ptr, cols, col_mask, num_channels, one_gain)
        if alpha_ptr is not None:
            weight = weight + gate * load_channels(alpha_ptr, cols, col_mask)
        z = z * weight
    if bias_ptr is not None:
        z = z + load_channels(bias_ptr, cols, col_mask)
    tl.store(y_ptr + offsets, z, mask=mask)


@kernel
def backward_kernel(
    x_ptr: tl.tensor,
    num_rows: tl.tensor,
    dy_ptr: tl.tensor,
    dx_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    rstd_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    alpha_ptr: tl.tensor,
    b_ptr: tl.tensor,
    partial_sums_ptr: tl.tensor,
    eps: tl.tensor,
    phi_scale: tl.tensor,
    phi_slope: tl.tensor,
    num_channels: tl.constexpr,
    group_size: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    released: tl.constexpr,
    has_phi: tl.constexpr,
    through_mean: tl.constexpr,
    through_rstd: tl.constexpr,
    one_gain: tl.constexpr,
) -> None:
    """Store dx for every tile of this program; with a weight, also the sums of dy z and of dy, with
    alpha and b their gradients in place of the latter, with a weight for all channels its own."""
    cols, col_mask = program_cols(num_channels, group_size, BLOCK_N)
    if weight_ptr is not None:
        weight = load_gain(weight_ptr, cols, col_mask, num_channels, one_gain)
        dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        dbias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if alpha_ptr is not None:
        alpha = load_channels(alpha_ptr, cols, col_mask)
        b = load_channels(b_ptr, cols, col_mask)
        dalpha = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        db = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.num_programs(0)):
        rows, row_mask = tile_rows(tile, num_rows, BLOCK_M)
        group_offsets = rows * tl.num_programs(1) + tl.program_id(1)
        offsets = rows[:, None] * num_channels + cols[None, :]
        mask = row_mask[:, None] & col_mask[None, :]
        z = tl.load(x_ptr + offsets, mask=mask, other=0).to(tl.float32)
        g = tl.load(dy_ptr + offsets, mask=mask, other=0).to(tl.float32)
        rstd = tl.load(rstd_ptr + group_offsets, mask=row_mask, other=0)
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + group_offsets, mask=row_mask, other=0)
            z = tl.where(col_mask[None, :], z - mean[:, None], 0.0)
        x = z
        z = z * rstd[:, None]
        if weight_ptr is not None:
            dweight += g * z
        if alpha_ptr is not None:
            gate = value_of(tl.sum(x * b, 1), False)[:, None]
            slope = (1.0 - gate * gate) * tl.sum(g * z * alpha, 1)[:, None]
            dalpha += g * z * gate
            db += slope * x
            g = g * (weight + gate * alpha)
        elif weight_ptr is not None:
            dbias += g
            g = g * weight
        if has_phi:
            g = g * (phi_scale * (1.0 - phi_slope * z))
        dx = g
        if through_mean:
            dx = dx - (tl.sum(g, 1) / group_size)[:, None]
        dx = dx * rstd[:, None]
        if through_rstd:
            factor = rstd / group_size
            if released:
                s = 1.0 / rstd - eps
                factor = tl.where(s > 0, 1.0 / ((group_size - 1) * s), 0.0)
            dx = dx - z * (factor * tl.sum(g * z, 1))[:, None]
        if alpha_ptr is not None:
            dx = dx + slope * b
        tl.store(dx_ptr + offsets, dx, mask=mask)
    if weight_ptr is not None:
        if one_gain:
            total = tl.sum(tl.sum(dweight, 1), 0) / num_channels**0.5
            tl.store(partial_sums_ptr + tl.program_id(0), total)
        elif alpha_ptr is not None:
            store_partial_sum(partial_sums_ptr, 0, 3, dweight, cols, col_mask, num_channels)
            store_partial_sum(partial_sums_ptr, 1, 3, dalpha, cols, col_mask, num_channels)
            store_partial_sum(partial_sums_ptr, 2, 3, db, cols, col_mask, num_channels)
        else:
            store_partial_sum(partial_sums_ptr, 0, 2, dweight, cols, col_mask, num_channels)
            store_partial_sum(partial_sums_ptr, 1, 2, dbias, cols, col_mask, num_channels)


def _phi(rule: RowRule) -> tuple[float, float]:
    return (0.0, 0.0) if rule.phi is None else rule.phi


@replayed(5)
def row_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    alpha: Tensor | None,
    b: Tensor | None,
    rule: RowRule,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return y, mean (None without ``center``) and rstd.

    weight: (C,), (1,) for ``one_gain``, or None; bias: (C,) or None; alpha, b: (C,) or
    None, both or neither.
    """
    check(x)
    x = aligned(x)
    tiles = tiling(x.size(-1), rule.groups)
    y = empty_like(x)
    rstd = empty(x, rows_of(x), rule.groups)
    mean = empty_like(rstd) if rule.center else None
    launch_pass(
        forward_kernel,
        x,
        tiles,
        num_tiles(x, tiles),
        *(y, mean, rstd, weight, bias, alpha, b, float(rule.eps), *_phi(rule)),
        constants=(rule.released, rule.phi is not None, rule.one_gain),
    )
    return y, mean, rstd


@replayed(7)
def row_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    alpha: Tensor | None,
    b: Tensor | None,
    rule: RowRule,
) -> tuple[Tensor | None, ...]:
    """Return dx and the gradients of weight, bias, alpha and b, None where they are not defined.

    With g = weight * dy, or C (1 - k z) dy:  dx = rstd (g - mean(g)) - a z sum(g z), where a
    is rstd / (C/G), or 1 / ((C/G - 1) s) if ``released``, 0 for s = 0. Without
    ``through_mean`` or ``center`` the first mean is omitted, without ``through_rstd`` the
    last term. With s = tanh(x . b), g = (weight + s alpha) dy, and dx has the further term
    (1 - s^2) sum(alpha dy z) b.
    """
    check(x, dy)
    x, dy = aligned(x), aligned(dy)
    tiles = tiling(x.size(-1), rule.groups)
    dx = empty_like(x)
    programs = num_tiles(x, tiles) if weight is None else num_programs(x, tiles)
    sums = None
    if weight is not None:
        kinds = 2 if alpha is None else 3
        sums = empty(x, programs, 1) if rule.one_gain else empty_partial_sums(x, programs, kinds)
    through_mean = rule.through_mean and rule.center
    launch_pass(
        backward_kernel,
        x,
        tiles,
        programs,
        *(dy, dx, mean, rstd, weight, alpha, b, sums, float(rule.eps), *_phi(rule)),
        constants=(
            *(rule.released, rule.phi is not None),
            *(through_mean, rule.through_rstd, rule.one_gain),
        ),
    )
    if sums is None:
        return dx, None, None, None, None
    total = add_partial_sums(sums)
    if rule.one_gain:
        return dx, total, None, None, None
    if alpha is None:
        return dx, total[0], total[1], None, None
    return dx, total[0], None, total[1], total[2]
