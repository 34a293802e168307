"""Norms over the channels of one position, in Triton: a tile holds whole groups of channels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from norm_plugin.kernels.passes import RowRule
from norm_plugin.kernels.triton.tiles import (
    check,
    columns_of_span,
    every_tile,
    launch,
    leave_sum,
    room,
    rows_of_tile,
    shares,
    tiling,
    total,
)


@triton.jit(do_not_specialize=["rows"])
def forward_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    y_at: tl.tensor,
    mean_at: tl.tensor,
    rate_at: tl.tensor,
    weight_at: tl.tensor,
    bias_at: tl.tensor,
    eps: tl.tensor,
    bend_scale: tl.tensor,
    bend_slope: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
    released: tl.constexpr,
    bent: tl.constexpr,
) -> None:
    """y, mean and rate of RowRule for one tile."""
    column, inside = columns_of_span(channels, width, block)
    row, exists = rows_of_tile(tl.program_id(0), rows, height)
    group_at = row * tl.num_programs(1) + tl.program_id(1)
    at = row[:, None] * channels + column[None, :]
    mask = exists[:, None] & inside[None, :]
    z = tl.load(x_at + at, mask=mask, other=0).to(tl.float32)
    if mean_at is not None:
        mean = tl.sum(z, 1) / width
        tl.store(mean_at + group_at, mean, mask=exists)
        z = tl.where(inside[None, :], z - mean[:, None], 0.0)
    squares = tl.sum(z * z, 1)
    if released:
        rate = 1.0 / (tl.sqrt(squares / (width - 1)) + eps)
    else:
        rate = 1.0 / tl.sqrt(squares / width + eps)
    tl.store(rate_at + group_at, rate, mask=exists)
    z = z * rate[:, None]
    if bent:
        z = bend_scale * (1.0 - bend_slope * z) * z
    if weight_at is not None:
        z = z * tl.load(weight_at + column, mask=inside, other=0)[None, :]
    if bias_at is not None:
        z = z + tl.load(bias_at + column, mask=inside, other=0)[None, :]
    tl.store(y_at + at, z, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def backward_kernel(
    x_at: tl.tensor,
    rows: tl.tensor,
    dy_at: tl.tensor,
    dx_at: tl.tensor,
    mean_at: tl.tensor,
    rate_at: tl.tensor,
    weight_at: tl.tensor,
    sums_at: tl.tensor,
    eps: tl.tensor,
    bend_scale: tl.tensor,
    bend_slope: tl.tensor,
    channels: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    height: tl.constexpr,
    released: tl.constexpr,
    bent: tl.constexpr,
    through_mean: tl.constexpr,
    through_rate: tl.constexpr,
) -> None:
    """dx for every tile of this program, and the sums of dy z and of dy if there is a weight."""
    column, inside = columns_of_span(channels, width, block)
    if weight_at is not None:
        weight = tl.load(weight_at + column, mask=inside, other=0)[None, :]
        of_weight = tl.zeros((height, block), tl.float32)
        of_bias = tl.zeros((height, block), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, height), tl.num_programs(0)):
        row, exists = rows_of_tile(tile, rows, height)
        group_at = row * tl.num_programs(1) + tl.program_id(1)
        at = row[:, None] * channels + column[None, :]
        mask = exists[:, None] & inside[None, :]
        z = tl.load(x_at + at, mask=mask, other=0).to(tl.float32)
        g = tl.load(dy_at + at, mask=mask, other=0).to(tl.float32)
        rate = tl.load(rate_at + group_at, mask=exists, other=0)
        if mean_at is not None:
            mean = tl.load(mean_at + group_at, mask=exists, other=0)
            z = tl.where(inside[None, :], z - mean[:, None], 0.0)
        z = z * rate[:, None]
        if weight_at is not None:
            of_weight += g * z
            of_bias += g
            g = g * weight
        if bent:
            g = g * (bend_scale * (1.0 - bend_slope * z))
        dx = g
        if through_mean:
            dx = dx - (tl.sum(g, 1) / width)[:, None]
        dx = dx * rate[:, None]
        if through_rate:
            factor = rate / width
            if released:
                s = 1.0 / rate - eps
                factor = tl.where(s > 0, 1.0 / ((width - 1) * s), 0.0)
            dx = dx - z * (factor * tl.sum(g * z, 1))[:, None]
        tl.store(dx_at + at, dx, mask=mask)
    if weight_at is not None:
        leave_sum(sums_at, 0, 2, of_weight, column, inside, channels)
        leave_sum(sums_at, 1, 2, of_bias, column, inside, channels)


def _bend(rule: RowRule) -> tuple[float, float]:
    return (0.0, 0.0) if rule.bend is None else rule.bend


def row_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rule: RowRule
) -> tuple[Tensor, Tensor | None, Tensor]:
    """See :class:`Ops`."""
    check(x)
    cut = tiling(x.size(1), rule.groups)
    y = torch.empty_like(x)
    rate = x.new_empty((len(x), rule.groups), dtype=torch.float32)
    mean = torch.empty_like(rate) if rule.centre else None
    launch(
        forward_kernel,
        x,
        cut,
        every_tile(x, cut),
        *(y, mean, rate, weight, bias, float(rule.eps), *_bend(rule)),
        released=rule.released,
        bent=rule.bend is not None,
    )
    return y, mean, rate


def row_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rate: Tensor,
    weight: Tensor | None,
    rule: RowRule,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """See :class:`Ops`."""
    check(x, dy)
    cut = tiling(x.size(1), rule.groups)
    dx = torch.empty_like(x)
    programs = every_tile(x, cut) if weight is None else shares(x, cut)
    sums = None if weight is None else room(x, programs, 2)
    launch(
        backward_kernel,
        x,
        cut,
        programs,
        *(dy, dx, mean, rate, weight, sums, float(rule.eps), *_bend(rule)),
        released=rule.released,
        bent=rule.bend is not None,
        through_mean=rule.through_mean and rule.centre,
        through_rate=rule.through_rate,
    )
    if sums is None:
        return dx, None, None
    of_weight, of_bias = total(sums)
    return dx, of_weight, of_bias
