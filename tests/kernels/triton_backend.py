"""The backend in Triton for tests: compiled on a GPU, interpreted where there is none."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")

from norm_plugin.kernels.triton import loading  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS, FOUND = loading.load()

if DEVICE == "cpu" and not triton.knobs.runtime.interpret:
    pytest.skip("no GPU, and TRITON_INTERPRET=0 is set", allow_module_level=True)
