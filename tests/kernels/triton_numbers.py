"""Numbers for the tests of the passes in Triton, and how near a result must be."""

from __future__ import annotations

import torch

from triton_backend import DEVICE

# float32 against float64: sums of up to 513 terms, in another order, of results of size 1 to 10
CLOSE = {"rtol": 2e-5, "atol": 1e-4}


def numbers(*shape, seed=0, offset=0.0):
    """Numbers as float64, each exact in bfloat16, so that every dtype sees the same ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) + offset
    return x.bfloat16().double()


def on_device(*tensors, dtype=torch.float32):
    return [None if tensor is None else tensor.to(DEVICE, dtype) for tensor in tensors]


def same(actual, expected, dtype=torch.float32, **tolerance):
    assert (actual is None) == (expected is None)
    if actual is not None:
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.cpu().double(), expected, **(tolerance or CLOSE))


def rounded(dtype):
    """The tolerance for what is stored in ``dtype``: one rounding, to either neighbor."""
    return {"rtol": torch.finfo(dtype).eps, "atol": 1e-4} if dtype != torch.float32 else CLOSE


def ragged(rows):
    """Two real positions of three."""
    return torch.arange(rows) % 3 != 1
