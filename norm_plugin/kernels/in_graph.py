"""Which backend a graph of ``torch.compile`` calls.

This module is imported only while ``torch.compile`` traces: its decorator imports torch's compiler,
which takes a second or more.
"""

from __future__ import annotations

import torch

from norm_plugin.kernels.choice import ops_for
from norm_plugin.kernels.passes import Ops


@torch.compiler.assume_constant_result
def ops_in_graph(choice: str, device: str, dtype: torch.dtype, dim: int) -> Ops | None:
    """Return the backend for (N, dim) tensors, or None; it is a constant of the graph."""
    x = torch.empty((0, dim), dtype=dtype, device=device)
    ops = ops_for(choice, x)
    return ops if ops is not None and ops.takes(x) else None
