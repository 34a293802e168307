"""A residual sum with dropout, in Triton; ``../dropout.py`` says which values are dropped."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Counters per program; each decides on four values."""


@triton.jit(do_not_specialize=["numbers", "quarter", "seed", "threshold", "scale"])
def dropout_kernel(
    branch_ptr: tl.tensor,
    numbers: tl.tensor,
    quarter: tl.tensor,
    seed: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    stream_ptr: tl.tensor,
    y_ptr: tl.tensor,
    BLOCK_N: tl.constexpr,
) -> None:
    """Store y for the four values of each counter of this program."""
    counter = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    word0, word1, word2, word3 = tl.randint4x(seed, counter.to(tl.uint32))
    drop(branch_ptr, numbers, quarter, threshold, scale, stream_ptr, y_ptr, counter, word0, 0)
    drop(branch_ptr, numbers, quarter, threshold, scale, stream_ptr, y_ptr, counter, word1, 1)
    drop(branch_ptr, numbers, quarter, threshold, scale, stream_ptr, y_ptr, counter, word2, 2)
    drop(branch_ptr, numbers, quarter, threshold, scale, stream_ptr, y_ptr, counter, word3, 3)


@triton.jit
def drop(
    branch_ptr: tl.tensor,
    numbers: tl.tensor,
    quarter: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    stream_ptr: tl.tensor,
    y_ptr: tl.tensor,
    counter: tl.tensor,
    word: tl.tensor,
    place: tl.constexpr,
) -> None:
    """Store y for the values of one quarter."""
    offsets = counter + place * quarter
    col_mask = (counter < quarter) & (offsets < numbers)
    keep = word.to(tl.uint32, bitcast=True).to(tl.int64) >= threshold
    branch = tl.load(branch_ptr + offsets, mask=col_mask, other=0).to(tl.float32)
    y = tl.where(keep, branch * scale, 0.0)
    if stream_ptr is not None:
        y += tl.load(stream_ptr + offsets, mask=col_mask, other=0).to(tl.float32)
    tl.store(y_ptr + offsets, y, mask=col_mask)


def dropout_sum(stream: Tensor | None, branch: Tensor, p: float, seed: int) -> Tensor:
    """Compute :meth:`Ops.dropout_sum`."""
    y = torch.empty_like(branch)
    numbers = branch.numel()
    quarter = -(-numbers // 4)
    programs = max(1, triton.cdiv(quarter, BLOCK))
    with torch.cuda.device_of(branch):
        dropout_kernel[(programs,)](
            branch,
            numbers,
            quarter,
            seed,
            round(p * 2**32),
            1 / (1 - p),
            stream,
            y,
            BLOCK_N=BLOCK,
        )
    return y
