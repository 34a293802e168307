"""The GPU that computes nothing, benchmarks/measuring/fake_gpu.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")

PROGRAM = """
import torch
from measuring.fake_gpu import install
from measuring.launches import CountLaunches
install()
from norm_plugin.norms import build_norm
from norm_plugin.kernels import set_kernels

x = torch.randn(4, 4, 32, requires_grad=True)
norm = build_norm("layernorm-simple", 32)
set_kernels(norm, "auto")
with CountLaunches() as launches:
    y = norm(x)
    with CountLaunches() as backward:
        y.backward(torch.ones_like(y))
    x.grad.sum().item()
print(launches.triton.total(), backward.triton.total())
print(launches.torch["sum"], launches.torch["view"], launches.synchronizing)
try:
    install()
except RuntimeError as error:
    print(error)
"""


def test_kernels_are_compiled_and_counted_without_a_gpu():
    # a process of its own: here Triton interprets kernels
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert output == [
        "2 1",
        "1 0 1",
        "install() comes before any use of Triton, without TRITON_INTERPRET",
    ]
