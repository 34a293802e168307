"""Pairs of one norm, plain and fused, and batches with ragged padding."""

from __future__ import annotations

import copy

import pytest
import torch

from norm_plugin.kernels import set_kernels
from norm_plugin.kernels.choice import BACKENDS
from norm_plugin.norms import build_norm

LENGTHS = (70, 50, 2, 1)  # more rows than one block of the C++ kernels


@pytest.fixture
def pair():
    """The norm with random parameters in plain torch, and the same with the kernels ``choice``."""

    def make(name, options, dim, dtype=torch.float64, choice="cpu"):
        torch.manual_seed(1)
        plain = build_norm(name, dim, **options)
        for parameter in plain.parameters():
            torch.nn.init.normal_(parameter, mean=1.0)
        fused = copy.deepcopy(plain)
        set_kernels(plain, "off")
        set_kernels(fused, choice)
        return plain.to(dtype), fused.to(dtype)

    return make


@pytest.fixture
def draw():
    """x (T, B, C), its mask (B, T) and dL/dy of one step; no sentence at all at step 3."""

    def make(step, dim, dtype=torch.float64):
        generator = torch.Generator().manual_seed(step)
        shape = (LENGTHS[0], len(LENGTHS), dim)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        x = x * torch.linspace(0.5, 2.0, dim, dtype=torch.float64) + 0.3
        lengths = torch.tensor(LENGTHS if step != 3 else (0,) * len(LENGTHS))
        mask = torch.arange(LENGTHS[0]).unsqueeze(0) >= lengths.unsqueeze(1)
        g = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(dtype), mask, g.to(dtype)

    return make


@pytest.fixture
def native():
    """The C++ extension, on the level of vector instructions that it has chosen itself."""
    extension, description = BACKENDS["cpu"].load()
    assert extension is not None, f"scripts/setup.sh builds it: {description}"
    chosen = description.split()[-1]
    yield extension
    extension.use_level(chosen)


@pytest.fixture(params=["plain", "avx2", "avx512"])
def ops(request, native):
    """The extension at each level that the machine has."""
    if not native.machine_has(request.param):
        pytest.skip(f"this machine has no {request.param}")
    native.use_level(request.param)
    return native
