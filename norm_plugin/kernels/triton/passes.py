"""The backend in Triton, as one module with the functions of ``passes.Ops``.

The functions of each family are in its file.
"""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.passes import Ops
from norm_plugin.kernels.triton import batch_statistics, columns, pointwise, rows
from norm_plugin.kernels.triton.tiles import DTYPES, MOST_CHANNELS, is_served

FAMILIES = (rows, columns, batch_statistics, pointwise)

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
