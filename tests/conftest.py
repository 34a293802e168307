"""Settings that have to stand before a test, or what it imports, asks for them."""

from __future__ import annotations

import os

import torch

# Triton's kernels are tested compiled where there is a GPU, and else by its interpreter, which
# has to be chosen before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
