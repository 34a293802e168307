"""How the Triton passes divide an N x C tensor into tiles, and how they are launched.

C is divided into groups of ``group_size`` channels, and N into tiles of ``BLOCK_M`` rows. A program
processes one group, on every tile whose number is its own plus a multiple of the number of
programs. It stores the partial sums over its rows, and torch adds those of all programs: no two
programs write to one address, so that equal inputs give bit-equal results on the same device.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

logger = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_CHANNELS = 8192
OLDEST_CAPABILITY = (8, 0)  # that Triton supports; the first with bfloat16
TILE_NUMBERS = 2048  # values per tile, unless a row is longer
GROUP_SIZE = 128  # if rows are not summed: 256 bytes of half precision
NUMBERS_A_WARP = 512  # 16 registers per thread for each tensor of the tile
WARPS_AT_ONCE = 16  # per multiprocessor, limited by registers at 128 per thread
CHANNELS_A_PROGRAM = 16
PROGRAMS_AT_ONCE = 64  # with the line above, the size of the tile in which partial sums are added
FEW_WARPS = 4
INTERPRETED_MULTIPROCESSORS = 2  # for a tensor on the CPU, which only the interpreter accepts


class Tiling(NamedTuple):
    """``num_groups`` of ``group_size`` channels, in tiles of ``block_m`` rows.

    A tile has ``block_n`` lanes, ``group_size`` rounded up to a power of two.
    """

    num_channels: int
    group_size: int
    num_groups: int
    block_n: int
    block_m: int
    num_warps: int


@functools.cache
def tiling(num_channels: int, groups: int) -> Tiling:
    """Return the tiling of passes that sum over ``groups`` groups of a row's channels.

    Args:
        groups: the number of groups, which divides the channels; 0: rows are not summed.
    """
    group_size = num_channels // groups if groups else min(num_channels, GROUP_SIZE)
    block_n = triton.next_power_of_2(group_size)
    block_m = max(1, TILE_NUMBERS // block_n)
    num_warps = min(max(block_n * block_m // NUMBERS_A_WARP, 4), 16)
    return Tiling(
        num_channels, group_size, triton.cdiv(num_channels, group_size), block_n, block_m, num_warps
    )


@functools.cache
def supports_device(device: torch.device) -> bool:
    """Return whether Triton runs code on ``device``; a GPU that is too old is logged once."""
    if device.type != "cuda":
        return device.type == "cpu" and triton.knobs.runtime.interpret
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        logger.warning(
            "norms run in plain torch, which is slower: %s has compute capability %d.%d, but "
            "Triton needs %d.%d",
            *(torch.cuda.get_device_name(device), *capability, *OLDEST_CAPABILITY),
        )
        return False
    return True


@functools.cache
def _most_programs(device: int, tiles: Tiling) -> int:
    """Return how many programs along N run at once on a GPU, by its number; -1: on the CPU."""
    multiprocessors = INTERPRETED_MULTIPROCESSORS
    if device >= 0:
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, multiprocessors * WARPS_AT_ONCE // tiles.num_warps // tiles.num_groups)


def rows_of(x: Tensor) -> int:
    """Return N for x, (..., C)."""
    return x.numel() // x.size(-1)


def num_tiles(x: Tensor, tiles: Tiling) -> int:
    """Return the number of programs along N if each takes one tile; 1 for no rows."""
    return max(1, -(-rows_of(x) // tiles.block_m))


def num_programs(x: Tensor, tiles: Tiling) -> int:
    """Return the number of programs along N that run at once, for a pass with partial sums."""
    return min(num_tiles(x, tiles), _most_programs(x.get_device(), tiles))


class Recording:
    """What a call does on the device; see ``replay.py``.

    Attributes:
        launches: functions and their arguments; None for one that Triton's front end has launched.
        empties: the memory that the call allocates.
        fixed: tensors that every such call uses.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, tuple[Any, ...]] | None] = []
        self.empties: list[Tensor] = []
        self.fixed: list[Tensor] = []


_recording: Recording | None = None


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Record the launches in this context."""
    global _recording
    before, _recording = _recording, Recording()
    try:
        yield _recording
    finally:
        _recording = before


def empty(x: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory on the device of ``x``."""
    new = x.new_empty(shape, dtype=dtype)
    if _recording is not None:
        _recording.empties.append(new)
    return new


def empty_like(x: Tensor) -> Tensor:
    """Return memory for y or dx."""
    return empty(x, *x.shape, dtype=x.dtype)


def empty_partial_sums(x: Tensor, programs: int, kinds: int) -> Tensor:
    """Return memory for the partial sums of all programs: (programs, kinds, C), float32."""
    return empty(x, programs, kinds, x.size(-1))


def stream_of(device: int) -> int:
    """Return the current stream of a device, by its number; -1: the CPU, which has none."""
    return torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0


@functools.cache
def _ticket(device: int, stream: int) -> Tensor:
    on = "cpu" if device < 0 else f"cuda:{device}"
    return torch.zeros(1, dtype=torch.int32, device=on)


def ticket_for(x: Tensor) -> Tensor:
    """Return the ticket of kernels on the current stream, which run one after the other."""
    device = x.get_device()
    ticket = _ticket(device, stream_of(device))
    if _recording is not None:
        _recording.fixed.append(ticket)
    return ticket


kernel = triton.jit(
    do_not_specialize=["num_rows", "programs"],
    do_not_specialize_on_alignment=[
        *("valid_ptr", "weight_ptr", "bias_ptr", "shift_ptr", "gain_ptr", "offset_ptr"),
        *("padding_value_ptr", "dy_coef_ptr", "constant_ptr", "u_coef_ptr", "slope_ptr"),
        *("running_mean_ptr", "running_square_ptr", "square_ptr", "nu_ptr", "scale_ptr"),
        *("eta_ptr", "window_ptr", "filled_ptr", "psi_ptr", "alpha_ptr", "b_ptr"),
    ],
)
"""Decorator of the kernels that :func:`launch` runs: of these arguments it knows nothing."""

_COMPILED: dict[Any, Any] = {}
"""Kernels that were launched before, by all that Triton compiles them for."""
CALLS_COMPILED = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3)
"""Whether a compiled kernel takes its constants as arguments, as since this version."""


def launch(
    function: Any,
    x: Tensor,
    grid: tuple[int, int, int],
    args: tuple[Any, ...],
    constants: tuple[Any, ...],
    num_warps: int,
) -> None:
    """Run a kernel on the device of ``x``.

    Triton's front end examines each argument, which takes several times as long as the launch. It
    does so once for each dtype of x, device, choice of absent arguments and ``constants``; on all
    else nothing depends: see ``kernel``, :func:`aligned` and the dtypes in ``passes.py``.

    Args:
        args: the arguments, tensors or None, then those that are numbers.
        constants: the values of the kernel's last parameters, those that are ``tl.constexpr``.
    """
    device = x.get_device()  # -1 on the CPU
    key = (id(function), x.dtype, device, constants, tuple([arg is None for arg in args]))
    compiled = _COMPILED.get(key)
    is_current = device < 0 or torch._C._cuda_getDevice() == device
    if compiled is None or not is_current:
        with torch.cuda.device_of(x):
            compiled = function[grid](*args, *constants, num_warps=num_warps)
        if compiled is not None and CALLS_COMPILED:  # None: the interpreter has run it
            _COMPILED[key] = compiled.run, compiled.function, compiled.packed_metadata
        if _recording is not None:
            _recording.launches.append(None)
        return
    run, handle, metadata = compiled
    # As torch's own compiler launches Triton's kernels; the three are hooks of a profiler
    given = (*grid, stream_of(device), handle, metadata, None, None, None, *args, *constants)
    run(*given)
    if _recording is not None:
        _recording.launches.append((run, given))


def aligned(x: Tensor) -> Tensor:
    """Return ``x``, or a copy if its memory does not begin at a multiple of 16 bytes.

    Passes are compiled to read 16 bytes of a row at once.
    """
    return x.clone() if x.data_ptr() % 16 else x


def launch_pass(
    function: Any,
    x: Tensor,
    tiles: Tiling,
    programs: int,
    *args: Any,
    constants: tuple[Any, ...] = (),
) -> None:
    """Run a pass over x, (..., C); ``args`` follow x and its number of rows."""
    launch(
        function,
        x,
        (programs, tiles.num_groups, 1),
        (x, rows_of(x), *args),
        (tiles.num_channels, tiles.group_size, tiles.block_n, tiles.block_m, *constants),
        tiles.num_warps,
    )


def check(x: Tensor, dy: Tensor | None = None, valid: Tensor | None = None) -> None:
    """Raise ValueError unless the tensors are as ``passes.py`` says; kernels check nothing."""
    if not x.is_contiguous():
        raise ValueError(f"x must be contiguous, not {tuple(x.shape)}, {x.stride()}")
    if dy is not None and not (dy.shape == x.shape and dy.dtype == x.dtype and dy.is_contiguous()):
        raise ValueError(
            f"dy must be contiguous and like x, {tuple(x.shape)} of {x.dtype}, "
            f"not {tuple(dy.shape)} of {dy.dtype}"
        )
    if valid is not None and not (
        valid.shape == x.shape[:-1] and valid.dtype is torch.bool and valid.is_contiguous()
    ):
        raise ValueError(
            f"valid must be bool, contiguous and of shape {tuple(x.shape[:-1])}, "
            f"not {tuple(valid.shape)} of {valid.dtype}"
        )


def as_bytes(valid: Tensor | None) -> Tensor | None:
    """Return the mask as bytes, 1 at real positions, as kernels expect it."""
    return None if valid is None else valid.view(torch.uint8)


# --- in kernels -----------------------------------------------------------------------------


@triton.jit
def program_cols(
    num_channels: tl.constexpr, group_size: tl.constexpr, BLOCK_N: tl.constexpr
) -> Any:  # (BLOCK_N,) each
    """Return the channels of this program's group, and which of them exist."""
    lane = tl.arange(0, BLOCK_N)
    cols = tl.program_id(1) * group_size + lane
    return cols, (lane < group_size) & (cols < num_channels)


@triton.jit
def tile_rows(
    tile: tl.tensor, num_rows: tl.tensor, BLOCK_M: tl.constexpr
) -> Any:  # (BLOCK_M,) each
    """Return the rows of a tile, in 64 bits for N C beyond 2^31, and which of them exist."""
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    return rows.to(tl.int64), rows < num_rows


@triton.jit
def load_valid(valid_ptr: tl.tensor, rows: tl.tensor, row_mask: tl.tensor) -> Any:  # (BLOCK_M,)
    """Return which of the rows are in V."""
    valid = row_mask
    if valid_ptr is not None:
        valid = row_mask & (tl.load(valid_ptr + rows, mask=row_mask, other=0) != 0)
    return valid


@triton.jit
def store_per_channel(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    numbers: tl.tensor,
    cols: tl.tensor,
    col_mask: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store ``numbers``, (BLOCK_N,), for this program."""
    offsets = (tl.program_id(0) * kinds + kind) * num_channels + cols
    tl.store(partial_sums_ptr + offsets, numbers, mask=col_mask)


@triton.jit
def store_partial_sum(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    terms: tl.tensor,
    cols: tl.tensor,
    col_mask: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store this program's partial sum over the rows of ``terms``, (BLOCK_M, BLOCK_N)."""
    numbers = tl.sum(terms, 0)
    store_per_channel(partial_sums_ptr, kind, kinds, numbers, cols, col_mask, num_channels)


@triton.jit
def store_row(
    rows_ptr: tl.tensor,
    row: tl.tensor,
    values: tl.tensor,
    cols: tl.tensor,
    num_channels: tl.constexpr,
) -> None:
    """Store ``values``, one per channel or a single one, in one row of (rows, C)."""
    values = values + tl.zeros(cols.shape, tl.float32)
    tl.store(rows_ptr + row * num_channels + cols, values, mask=cols < num_channels)


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
def store_sum(
    partial_sums_ptr: tl.tensor,
    kind: tl.constexpr,
    kinds: tl.constexpr,
    programs: tl.tensor,
    out_ptr: tl.tensor,
    row: tl.constexpr,
    num_channels: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Add one of the sums of all programs, and store it in a row, for this program's channels."""
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, programs, BLOCK_P):
        total += load_kind(
            partial_sums_ptr, kind, kinds, first, programs, cols, num_channels, BLOCK_P
        )
    store_row(out_ptr, row, tl.sum(total, 0), cols, num_channels)


@kernel
def add_programs_kernel(
    partial_sums_ptr: tl.tensor,
    programs: tl.tensor,
    out_ptr: tl.tensor,
    width: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Add (programs, width) over the programs, in a fixed order."""
    store_sum(partial_sums_ptr, 0, 1, programs, out_ptr, 0, width, BLOCK_N, BLOCK_P)


def add_partial_sums(sums: Tensor) -> Tensor:
    """Add the partial sums of all programs, and return (kinds, C)."""
    out = empty(sums, *sums.shape[1:])
    width = out.numel()
    grid = (triton.cdiv(width, CHANNELS_A_PROGRAM), 1, 1)
    constants = (width, CHANNELS_A_PROGRAM, PROGRAMS_AT_ONCE)
    launch(add_programs_kernel, sums, grid, (sums, sums.size(0), out), constants, FEW_WARPS)
    return out
