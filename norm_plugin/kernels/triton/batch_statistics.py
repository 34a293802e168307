"""What norms over positions compute for each channel, between and after the passes over memory.

Each function is a few launches: one of torch's operations on C numbers costs a GPU's host more than
the arithmetic, and a norm would take about twenty. ``fused/batch_norm.py`` and
``fused/power_norm.py`` do the same in torch where workers are synchronized.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.triton.columns import (
    column_gradient,
    mapped,
    partial_moments,
    partial_products,
)

CHANNELS_A_PROGRAM = 32
PROGRAMS_AT_ONCE = 32
"""The size of the tile in which partial sums are added."""


@triton.jit
def channels_of(num_channels: tl.constexpr, BLOCK_N: tl.constexpr) -> Any:  # (BLOCK_N,) each
    """Return the channels of this program, and which of them exist."""
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    return cols, cols < num_channels


@triton.jit
def load_kind(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    first: tl.tensor,
    programs: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> tl.tensor:
    """Load one of the three sums of BLOCK_P programs, (BLOCK_P, BLOCK_N); 0 beyond the last."""
    program = first + tl.arange(0, BLOCK_P)
    offsets = (program * 3 + kind)[:, None] * num_channels + cols[None, :]
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


@triton.jit(do_not_specialize=["programs"])
def moments_to_map_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count_ptr: tl.tensor,
    eps: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    center: tl.constexpr,
) -> None:
    """Store mean, variance (or mean square), 1 / its root and the gain, (4, C), and n, ().

    The sums of programs are merged as Chan, Golub and LeVeque 1983 do.
    """
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    sums = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    counts = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        count = load_kind(partial_sums_ptr, 2, first, programs, cols, num_channels, BLOCK_P)
        part = load_kind(partial_sums_ptr, 0, first, programs, cols, num_channels, BLOCK_P)
        counts += count
        if center:
            part = part * count
        sums += part
    number = tl.sum(counts, 0)
    n = tl.maximum(number, 1.0)
    mean = tl.sum(sums, 0) / n
    squares = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        squares += load_kind(partial_sums_ptr, 1, first, programs, cols, num_channels, BLOCK_P)
        if center:
            count = load_kind(partial_sums_ptr, 2, first, programs, cols, num_channels, BLOCK_P)
            part = load_kind(partial_sums_ptr, 0, first, programs, cols, num_channels, BLOCK_P)
            apart = part - mean[None, :]
            # Multiply by the count first: it may be 0 where the square is beyond float32
            squares += apart * (apart * count)
    variance = tl.sum(squares, 0) / n
    inverse = 1.0 / tl.sqrt(variance + eps)
    gain = tl.load(weight_ptr + cols, mask=col_mask, other=0) * inverse
    store_rows(out_ptr, 0, mean, cols, num_channels)
    store_rows(out_ptr, 1, variance, cols, num_channels)
    store_rows(out_ptr, 2, inverse, cols, num_channels)
    store_rows(out_ptr, 3, gain, cols, num_channels)
    tl.store(count_ptr + cols, number, mask=cols == 0)


@triton.jit(do_not_specialize=["programs"])
def products_to_gradient_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    inverse_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    count_ptr: tl.tensor,
    pull_constant_ptr: tl.tensor,
    pull_u_coef_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Store sum_N dy, sum_V dy x_hat, mean_V(g x_hat), and a, c and b of du, (6, C)."""
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    every = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    real = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    with_u = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        every += load_kind(partial_sums_ptr, 0, first, programs, cols, num_channels, BLOCK_P)
        real += load_kind(partial_sums_ptr, 1, first, programs, cols, num_channels, BLOCK_P)
        with_u += load_kind(partial_sums_ptr, 2, first, programs, cols, num_channels, BLOCK_P)
    n = tl.maximum(tl.load(count_ptr), 1.0)
    inverse = tl.load(inverse_ptr + cols, mask=col_mask, other=0)
    weight = tl.load(weight_ptr + cols, mask=col_mask, other=0)
    gain, dweight = weight * inverse, tl.sum(with_u, 0) * inverse
    mean_gx = weight * dweight / n
    constant = -gain * tl.sum(real, 0) / n
    u_coef = -mean_gx * inverse * inverse
    if pull_constant_ptr is not None:
        constant += tl.load(pull_constant_ptr + cols, mask=col_mask, other=0)
        u_coef += tl.load(pull_u_coef_ptr + cols, mask=col_mask, other=0)
    store_rows(out_ptr, 0, tl.sum(every, 0), cols, num_channels)
    store_rows(out_ptr, 1, dweight, cols, num_channels)
    store_rows(out_ptr, 2, mean_gx, cols, num_channels)
    store_rows(out_ptr, 3, gain, cols, num_channels)
    store_rows(out_ptr, 4, constant, cols, num_channels)
    store_rows(out_ptr, 5, u_coef, cols, num_channels)


@triton.jit
def all_finite(numbers: tl.tensor) -> tl.tensor:
    """Return whether no entry is NaN or infinite."""
    return tl.min((tl.abs(numbers) < float("inf")).to(tl.int32), 0) == 1


@triton.jit
def running_average_kernel(
    buffer_ptr: tl.tensor,
    value_ptr: tl.tensor,
    share: tl.tensor,
    count_ptr: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Update a running statistic as ``norms/base/means.py`` does, from the nearer end."""
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    old = tl.load(buffer_ptr + cols, mask=col_mask, other=0)
    value = tl.load(value_ptr + cols, mask=col_mask, other=0)
    new = tl.where(share < 0.5, old + share * (value - old), value - (1 - share) * (value - old))
    usable = all_finite(value) & (tl.load(count_ptr) > 0)
    tl.store(buffer_ptr + cols, new, mask=col_mask & usable)


@triton.jit
def nu_kernel(
    nu_ptr: tl.tensor,
    gamma_ptr: tl.tensor,
    lambda_ptr: tl.tensor,
    step: tl.tensor,
    step_ptr: tl.tensor,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Store nu (1 - step Gamma) + step Lambda, unless that is not finite."""
    cols, col_mask = channels_of(num_channels, BLOCK_N)
    if step_ptr is not None:
        step = tl.load(step_ptr)
    nu = tl.load(nu_ptr + cols, mask=col_mask, other=0)
    gamma = tl.load(gamma_ptr + cols, mask=col_mask, other=0)
    lambda_ = tl.load(lambda_ptr + cols, mask=col_mask, other=0)
    new = nu * (1 - step * gamma) + step * lambda_
    tl.store(nu_ptr + cols, new, mask=col_mask & all_finite(new))


def launch_per_channel(kernel: Any, like: Tensor, *args: Any, **constants: Any) -> None:
    """Run ``kernel`` on programs of some channels each; ``like``: its first argument, (..., C)."""
    channels = like.size(-1)
    with torch.cuda.device_of(like):
        kernel[(triton.cdiv(channels, CHANNELS_A_PROGRAM),)](
            like,
            *args,
            num_channels=channels,
            BLOCK_N=CHANNELS_A_PROGRAM,
            BLOCK_P=PROGRAMS_AT_ONCE,
            **constants,
        )


def launch_on_all_channels(kernel: Any, buffer: Tensor, *args: Any) -> None:
    """Run ``kernel`` on one program, which sees every number of ``buffer``, (C,)."""
    channels = buffer.numel()
    with torch.cuda.device_of(buffer):
        kernel[(1,)](buffer, *args, num_channels=channels, BLOCK_N=triton.next_power_of_2(channels))


def batch_forward(
    x: Tensor,
    valid: Tensor | None,
    groups: int,
    eps: float,
    center: bool,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Return y, mean, variance or mean square, 1 / its root, n, (), and the rstd.

    The mean is meaningful only with ``center``. x: (N, C); weight, bias and results: (C,).
    """
    sums, rstd = partial_moments(x, valid, groups, eps, center)
    numbers, count = sums.new_empty((4, x.size(1))), sums.new_empty(())
    launch_per_channel(
        moments_to_map_kernel, sums, len(sums), weight, numbers, count, float(eps), center=center
    )
    mean, square, inverse, gain = numbers.unbind()
    shift = mean if center else None
    y, rstd, _ = mapped(x, rstd, valid, groups, eps, shift, gain, bias, bias, False)
    return y, mean, square, inverse, count, rstd


def batch_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor | None,
    valid: Tensor | None,
    mean: Tensor | None,
    inverse: Tensor,
    weight: Tensor,
    count: Tensor,
    pull_constant: Tensor | None,
    pull_u_coef: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dx, sum_V dy x_hat, sum_N dy and mean_V(g x_hat) for g = weight * dy.

    Args:
        dy, x: (N, C).
        rstd, mean, inverse, count: of ``batch_forward``; mean is None without ``center``.
        weight: (C,).
        pull_constant, pull_u_coef: (C,), what else is added to c and b of du; both or neither.
    """
    sums = partial_products(dy, x, rstd, valid, mean)
    numbers = sums.new_empty((6, x.size(1)))
    launch_per_channel(
        products_to_gradient_kernel,
        *(sums, len(sums), inverse, weight, count, pull_constant, pull_u_coef, numbers),
    )
    every, dweight, mean_gx, gain, constant, u_coef = numbers.unbind()
    shifted = None if mean is None else constant
    dx, _ = column_gradient(dy, x, rstd, valid, mean, gain, shifted, u_coef, False)
    return dx, dweight, every, mean_gx


def update_running_average(buffer: Tensor, value: Tensor, weight: float, count: Tensor) -> None:
    """Compute :meth:`Ops.update_running_average`."""
    launch_on_all_channels(running_average_kernel, buffer, value.contiguous(), float(weight), count)


def update_nu(nu: Tensor, gamma: Tensor, lambda_: Tensor, step: float | Tensor) -> None:
    """Compute nu <- nu (1 - step Gamma) + step Lambda, unless that is not finite.

    nu, Gamma, Lambda: (C,), float32; step: a number or ().
    """
    number, tensor = (0.0, step) if isinstance(step, Tensor) else (float(step), None)
    launch_on_all_channels(nu_kernel, nu, gamma.contiguous(), lambda_.contiguous(), number, tensor)
