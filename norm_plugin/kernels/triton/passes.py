"""The backend in Triton, as one module with the functions of ``passes.Ops``."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.triton.columns import (
    column_gradient,
    column_map,
    column_moments,
    column_products,
)
from norm_plugin.kernels.triton.dropout import dropout_sum
from norm_plugin.kernels.triton.pointwise import pointwise_backward, pointwise_forward
from norm_plugin.kernels.triton.rows import row_backward, row_forward
from norm_plugin.kernels.triton.tiles import DTYPES, MOST_CHANNELS, is_served
from norm_plugin.norms.base.statistics import move

__all__ = [
    "column_gradient",
    "column_map",
    "column_moments",
    "column_products",
    "dropout_sum",
    "move",
    "pointwise_backward",
    "pointwise_forward",
    "row_backward",
    "row_forward",
    "takes",
]


def takes(x: Tensor) -> bool:
    """See :class:`Ops`."""
    return x.dtype in DTYPES and 0 < x.size(-1) <= MOST_CHANNELS and is_served(x.device)
