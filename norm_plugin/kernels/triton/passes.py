"""The backend in Triton: the functions that every backend has, each in the file of its family."""

from __future__ import annotations

from torch import Tensor

from norm_plugin.kernels.triton.batch_statistics import (
    batch_backward,
    batch_forward,
    running_backward,
    running_forward,
    window_backward,
    window_forward,
)
from norm_plugin.kernels.triton.columns import column_map
from norm_plugin.kernels.triton.pointwise import pointwise_backward, pointwise_forward
from norm_plugin.kernels.triton.rows import row_backward, row_forward
from norm_plugin.kernels.triton.tiles import DTYPES, MOST_CHANNELS, supports_device

__all__ = [
    "batch_backward",
    "batch_forward",
    "column_map",
    "pointwise_backward",
    "pointwise_forward",
    "row_backward",
    "row_forward",
    "running_backward",
    "running_forward",
    "takes",
    "window_backward",
    "window_forward",
]


def takes(x: Tensor) -> bool:
    """Return whether the functions above support the dtype and width of ``x``."""
    return x.dtype in DTYPES and 0 < x.size(-1) <= MOST_CHANNELS and supports_device(x.device)
