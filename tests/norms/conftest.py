"""Batches with ragged padding, as a Transformer sees them."""

from __future__ import annotations

import inspect

import pytest
import torch

from norm_plugin.kernels import VARIABLE, set_kernels
from norm_plugin.norms import NormSpec

TIME, BATCH, DIM = 7, 4, 12


def pytest_generate_tests(metafunc):
    """Run what takes ``kernels`` with plain and with fused norms, and all else with plain ones.

    The tests of the kernels compare fused forms with plain ones.
    """
    both = {"kernels", "saw"} & set(inspect.signature(metafunc.function).parameters)
    choices = ["off", "cpu"] if both else ["off"]
    metafunc.parametrize("kernels", choices, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def kernels(request):
    """The kernels of every norm that a test builds: plain torch, or the fused forms."""
    build = NormSpec.build

    def build_with_kernels(spec, dim, **options):
        norm = build(spec, dim, **options)
        set_kernels(norm, None)
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        patch.setattr(NormSpec, "build", build_with_kernels)
        yield request.param


@pytest.fixture
def ragged():
    """x (T, B, C) in float64 and its padding mask (B, T), of lengths 7, 5, 2 and 1."""

    def make(seed=0, dtype=torch.float64, dim=DIM):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(TIME, BATCH, dim, generator=generator, dtype=torch.float64)
        # channels of unlike size and offset, so that no statistic is trivially 0 or 1
        x = x * torch.linspace(0.5, 2.0, dim, dtype=torch.float64) + 0.3
        lengths = torch.tensor([7, 5, 2, 1])
        mask = torch.arange(TIME).unsqueeze(0) >= lengths.unsqueeze(1)
        return x.to(dtype), mask

    return make
