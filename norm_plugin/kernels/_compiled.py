"""``--norm-kernels compile``: torch.compile of the plain form."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch
from torch import Tensor

from norm_plugin.norms import Norm
from norm_plugin.norms._contract import FusedForm


@functools.lru_cache(maxsize=None)
def _compiled_normalize() -> Any:
    """One compiled function for all norms; torch tells their kinds and shapes apart."""
    return torch.compile(_plain, dynamic=True)


def _plain(norm: Norm, x: Tensor) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return norm.normalize(wide, None).to(x.dtype)


def compiled_form(norm: Norm) -> Optional[FusedForm]:
    """The compiled form of ``norm``; None for statistics over positions.

    What those norms keep from one batch to the next, and count, is no part of a graph.
    """
    return None if norm.batch_statistics else _call


def _call(norm: Norm, x: Tensor, valid: Optional[Tensor]) -> Tensor:
    y: Tensor = _compiled_normalize()(norm, x)
    return y
