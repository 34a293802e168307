"""Run a function outside the graph of ``torch.compile``.

This module is imported only while ``torch.compile`` traces: its decorator imports torch's compiler,
which takes a second or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.compiler.disable
def run_uncompiled(function: Callable[[], Tensor]) -> Tensor:
    """Return ``function()``, run without the compiler; this breaks the graph."""
    return function()
