"""The backend in Triton where Triton is not."""

from __future__ import annotations

import sys

import pytest
import torch

from norm_plugin.kernels.triton import loading


@pytest.fixture
def fresh():
    """load() as in a process that has not called it."""
    loading.load.cache_clear()
    yield loading.load
    loading.load.cache_clear()


def test_without_triton_it_says_so(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it now raises ImportError
    ops, description = fresh()
    assert ops is None
    assert description.startswith("cannot be imported (")
    assert "a CUDA build of torch includes triton" in description


def test_a_gpu_that_is_too_old_is_said_once(monkeypatch, caplog):
    pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")
    from norm_plugin.kernels.triton.tiles import supports_device

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    supports_device.cache_clear()
    device = torch.device("cuda", 0)
    try:
        assert not supports_device(device)
        assert not supports_device(device)
    finally:
        supports_device.cache_clear()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "an old one has compute capability 7.5, but Triton needs 8.0" in line
