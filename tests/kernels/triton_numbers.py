"""Numbers for the tests of the kernels in Triton."""

from __future__ import annotations

import torch

from triton_backend import DEVICE


def numbers(*shape, seed=0):
    """Numbers as float64, each exact in bfloat16, so that every dtype sees the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16().double()


def on_device(*tensors):
    return [None if tensor is None else tensor.to(DEVICE, torch.float32) for tensor in tensors]


def same(actual, expected, **tolerance):
    """Compare float32 with what is expected in float64."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.cpu().double(), expected, **tolerance)
