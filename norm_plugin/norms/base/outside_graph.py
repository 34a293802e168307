"""Run a function that ``torch.compile`` leaves out of its graph.

This module is imported only while ``torch.compile`` traces: its decorator imports all of torch's
compiler, which takes a second or more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.compiler.disable
def run_uncompiled(function: Callable[[], Tensor]) -> Tensor:
    """Return ``function()``, run without the compiler. The graph breaks here."""
    return function()
