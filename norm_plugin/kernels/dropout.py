"""stream + dropout(branch) in one pass, with a mask that is recomputed in the backward pass.

Stock torch draws a mask as long as the tensor, one number at a time, and stores it. Here the mask
is a function of a seed and of a number's index, which every backend computes alike, and only the
seed is stored:

    Q        = ceil(n / 4), for a tensor of n numbers
    word(i)  = the (i div Q)-th of the four words of Philox 4x32-10 (Salmon et al. 2011, "Parallel
               random numbers: as easy as 1, 2, 3") for the counter (i mod Q, 0, 0, 0) and the seed
    mask(i)  = 1 / (1 - p) if word(i) >= p 2^32, else 0
    y        = stream + mask * branch
    dstream  = dy,  dbranch = mask * dy

The seed is drawn from torch's generator on the CPU, so that ``torch.manual_seed``, a resumed run
and checkpointed activations reproduce it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.kernels import choice as choices
from norm_plugin.kernels.fused_forms import HALF
from norm_plugin.kernels.passes import Ops, statistics_dtype

WORD = 2**32
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
"""The constants added to the two words of the key after each round."""
ROUNDS = 10
MOST_NUMBERS = 4 * WORD
"""The largest number of values per tensor: a counter is one word."""


def philox(counter: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four words of Philox 4x32-10 for each counter (c, 0, 0, 0), as int64."""
    key = [seed % WORD, seed // WORD]
    zero = torch.zeros_like(counter)
    c = (counter, zero, zero, zero)
    for _ in range(ROUNDS):
        (high0, low0), (high1, low1) = (
            _halves(multiplier * word) for multiplier, word in zip(MULTIPLIERS, c[::2])
        )
        c = (high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0)
        key = [(word + step) % WORD for word, step in zip(key, WEYL)]
    return c


def _halves(product: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a 64-bit number."""
    return (product >> 32) & (WORD - 1), product & (WORD - 1)


def dropout_mask(shape: torch.Size, p: float, seed: int, device: torch.device) -> Tensor:
    """Return which values are kept: a bool tensor of this shape."""
    numbers = shape.numel()
    counter = torch.arange(-(-numbers // 4), device=device)
    words = torch.cat(philox(counter, seed))[:numbers]
    return (words >= round(p * WORD)).view(shape)


def plain_dropout_sum(stream: Tensor | None, branch: Tensor, p: float, seed: int) -> Tensor:
    """Compute :meth:`Ops.dropout_sum` in plain torch."""
    mask = dropout_mask(branch.shape, p, seed, branch.device)
    upcast = branch.to(statistics_dtype(branch))
    dropped = torch.where(mask, upcast / (1 - p), 0)
    return (dropped if stream is None else stream + dropped).to(branch.dtype)


class DropoutSum(torch.autograd.Function):
    """Compute y as in the docstring of this module, and its gradients."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, branch: Tensor, p: float, seed: int, ops: Ops | None
    ) -> Tensor:
        """Return y. stream, branch: of one shape and dtype; ops: the backend; None: plain torch."""
        ctx.p, ctx.seed, ctx.ops = p, seed, ops
        return _compute(stream, branch, p, seed, ops)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the stream and of the branch."""
        # With create_graph=True this pass is itself differentiated, which only plain torch supports
        ops = None if torch.is_grad_enabled() else ctx.ops
        return dy, _compute(None, dy, ctx.p, ctx.seed, ops), None, None, None


def _compute(stream: Tensor | None, branch: Tensor, p: float, seed: int, ops: Ops | None) -> Tensor:
    if ops is None:
        return plain_dropout_sum(stream, branch, p, seed)
    upcast = branch.float() if branch.dtype in HALF and not ops.takes(branch) else branch
    along = None if stream is None else stream.to(upcast.dtype).contiguous()
    return ops.dropout_sum(along, upcast.contiguous(), p, seed).to(branch.dtype)


def dropout_sum(stream: Tensor, branch: Tensor, p: float, choice: str) -> Tensor:
    """Return stream + dropout(branch), with a newly drawn seed.

    Args:
        stream, branch: of one shape. As in torch, the sum has the wider of their dtypes: under
            autocast the stream may be float32 and the branch in half precision.
        p: the probability that a value of ``branch`` is dropped, in [0, 1).
        choice: a value of ``KERNELS``; without kernels for the tensors, plain torch computes the
            same result.

    Raises:
        ValueError: p is outside [0, 1), or there are more than 4 * 2^32 values.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is {p}; it must be 0 or more, and less than 1")
    if branch.numel() > MOST_NUMBERS:
        raise ValueError(f"branch has {branch.numel()} values; at most {MOST_NUMBERS} are allowed")
    seed = int(torch.randint(2**63 - 1, ()))
    plain = choice in (choices.OFF, choices.COMPILE)
    ops = None if plain else choices.ops_for(choice, branch)
    dtype = torch.promote_types(stream.dtype, branch.dtype)
    y: Tensor = DropoutSum.apply(stream.to(dtype), branch.to(dtype), p, seed, ops)
    return y
