"""How the passes in Triton cut an N x C tensor into tiles, and how they are launched.

C is cut into spans of ``width`` channels, and N into tiles of ``height`` rows; a program works on
one span, on every tile whose number is its own plus a multiple of the number of programs. What a
program sums over its rows it leaves in its own place, and torch adds up the places: no two
programs write to one address, so that the same input gives the same bits on the same device.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

logger = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_CHANNELS = 8192
OLDEST_CAPABILITY = (8, 0)  # what Triton supports, and the first with bfloat16
TILE_NUMBERS = 2048  # of a tile, where a row is not longer than that
SPAN = 128  # channels of a span where no row is summed: 256 bytes of half precision
NUMBERS_A_WARP = 512  # 16 registers a thread for each tensor of the tile
WARPS_AT_ONCE = 16  # that one multiprocessor has registers for, at 128 of them a thread
INTERPRETED_MULTIPROCESSORS = 2  # for a tensor on the CPU, which only the interpreter takes


class Tiling(NamedTuple):
    """``spans`` of ``width`` channels, in tiles of ``height`` rows and ``block`` >= width lanes."""

    channels: int
    width: int
    spans: int
    block: int
    height: int
    warps: int


@functools.cache
def tiling(channels: int, groups: int) -> Tiling:
    """For passes that sum over each of ``groups`` groups of a row's channels; 0: over none.

    Raises:
        ValueError: the groups do not divide the channels.
    """
    if groups and channels % groups:
        raise ValueError(f"{groups} groups do not divide {channels} channels; choose a divisor")
    width = channels // groups if groups else min(channels, SPAN)
    block = triton.next_power_of_2(width)
    height = max(1, TILE_NUMBERS // block)
    warps = min(max(block * height // NUMBERS_A_WARP, 4), 16)
    return Tiling(channels, width, triton.cdiv(channels, width), block, height, warps)


@functools.cache
def is_served(device: torch.device) -> bool:
    """Whether Triton's code runs on ``device``; a GPU that is too old is logged once."""
    if device.type != "cuda":
        return device.type == "cpu" and triton.knobs.runtime.interpret
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        logger.warning(
            "norms run in plain torch, which is slower: %s has compute capability %d.%d, and "
            "Triton needs %d.%d",
            *(torch.cuda.get_device_name(device), *capability, *OLDEST_CAPABILITY),
        )
        return False
    return True


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_MULTIPROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def every_tile(x: Tensor, cut: Tiling) -> int:
    """The number of programs along N if each takes one tile; 1 for no rows."""
    return max(1, int(triton.cdiv(len(x), cut.height)))


def shares(x: Tensor, cut: Tiling) -> int:
    """The number of programs along N for a pass that leaves sums: as many as run at once."""
    at_once = _multiprocessors(x.device) * WARPS_AT_ONCE // cut.warps
    return min(every_tile(x, cut), max(1, at_once // cut.spans))


def room(x: Tensor, programs: int, kinds: int) -> Tensor:
    """Where each program leaves its sums of ``kinds`` kinds: (programs, kinds, C), float32."""
    return x.new_empty((programs, kinds, x.size(1)), dtype=torch.float32)


def total(sums: Tensor) -> Tensor:
    """(kinds, C): those of all programs together."""
    return sums[0] if len(sums) == 1 else sums.sum(0)


def launch(
    kernel: Any, x: Tensor, cut: Tiling, programs: int, *args: Any, **constants: Any
) -> None:
    """Run ``kernel`` on the device of ``x``; ``args`` follow x and its number of rows."""
    with torch.cuda.device_of(x):
        kernel[(programs, cut.spans)](
            x,
            len(x),
            *args,
            channels=cut.channels,
            width=cut.width,
            block=cut.block,
            height=cut.height,
            num_warps=cut.warps,
            **constants,
        )


def check(x: Tensor, dy: Tensor | None = None, valid: Tensor | None = None) -> None:
    """Raise ValueError unless the tensors are as ``passes.py`` says: kernels see addresses only."""
    if x.dim() != 2 or not x.is_contiguous():
        raise ValueError(f"x must be N x C and contiguous, not {tuple(x.shape)}, {x.stride()}")
    if dy is not None and not (dy.shape == x.shape and dy.dtype == x.dtype and dy.is_contiguous()):
        raise ValueError(
            f"dy must be contiguous and like x, {tuple(x.shape)} of {x.dtype}, "
            f"not {tuple(dy.shape)} of {dy.dtype}"
        )
    if valid is not None and not (
        valid.shape == x.shape[:1] and valid.dtype is torch.bool and valid.is_contiguous()
    ):
        raise ValueError(
            f"valid must be bool, contiguous and {len(x)} long, "
            f"not {tuple(valid.shape)} of {valid.dtype}"
        )


def as_bytes(valid: Tensor | None) -> Tensor | None:
    """The same memory for a kernel, 1 at real positions."""
    return None if valid is None else valid.view(torch.uint8)


# --- in kernels -----------------------------------------------------------------------------


@triton.jit
def columns_of_span(
    channels: tl.constexpr, width: tl.constexpr, block: tl.constexpr
) -> Any:  # (block,) each
    """The channels of this program's span, and which of them there are."""
    lane = tl.arange(0, block)
    column = tl.program_id(1) * width + lane
    return column, (lane < width) & (column < channels)


@triton.jit
def rows_of_tile(tile: tl.tensor, rows: tl.tensor, height: tl.constexpr) -> Any:  # (height,) each
    """The rows of a tile, in 64 bits for N C beyond 2^31, and which of them there are."""
    row = tile * height + tl.arange(0, height)
    return row.to(tl.int64), row < rows


@triton.jit
def real_rows(valid_at: tl.tensor, row: tl.tensor, exists: tl.tensor) -> Any:  # (height,)
    """Which of the rows are in V."""
    valid = exists
    if valid_at is not None:
        valid = exists & (tl.load(valid_at + row, mask=exists, other=0) != 0)
    return valid


@triton.jit
def leave_sum(
    sums_at: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    terms: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    channels: tl.constexpr,
) -> None:
    """Write the sum over the rows of ``terms``, (height, block), to this program's place."""
    at = (tl.program_id(0) * kinds + kind) * channels + column
    tl.store(sums_at + at, tl.sum(terms, 0), mask=inside)
