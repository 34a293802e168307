"""The backend in Triton, as one module with the functions of ``passes.Ops``.

The functions of each family are in its file.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.passes import Ops
from norm_plugin.kernels.triton import columns, dropout, pointwise, rows
from norm_plugin.kernels.triton.batch_statistics import (
    batch_norm_backward,
    batch_norm_forward,
    running_norm_backward,
    running_norm_forward,
    update_nu,
    update_running_average,
)
from norm_plugin.kernels.triton.tiles import DTYPES, MOST_CHANNELS, is_served

__all__ = [
    "batch_norm_backward",
    "batch_norm_forward",
    "running_norm_backward",
    "running_norm_forward",
    "takes",
    "update_nu",
    "update_running_average",
]

FAMILIES = (rows, columns, pointwise, dropout)

globals().update(
    {
        name: getattr(family, name)
        for family in FAMILIES
        for name in vars(Ops)
        if hasattr(family, name) and not name.startswith("_")
    }
)


def takes(x: Tensor) -> bool:
    """Compute :meth:`Ops.takes`."""
    return x.dtype in DTYPES and 0 < x.size(-1) <= MOST_CHANNELS and is_served(x.device)
