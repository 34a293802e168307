"""``--norm-kernels compile``: torch.compile of the plain form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.norms import Norm
from norm_plugin.norms.base.contract import FusedForm

_COMPILED: dict[type, Any] = {}


def _compiled(cls: type[Norm]) -> Any:
    """Return the compiled ``normalize`` of a class; torch bounds how often it recompiles."""
    if cls not in _COMPILED:
        _COMPILED[cls] = torch.compile(cls.normalize, dynamic=True)
    return _COMPILED[cls]


def _call(norm: Norm, x: Tensor, valid: Tensor | None) -> Tensor:
    upcast = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    y: Tensor = _compiled(type(norm))(norm, upcast, None)
    return y.to(x.dtype)


def compiled_form(norm: Norm) -> FusedForm | None:
    """Return the compiled form of ``norm``; None for statistics over positions.

    The running statistics and counts that those norms keep are no part of a graph. A norm with its
    own forward, such as ``layernorm``, which is torch's, would not use the form either.
    """
    own_forward = type(norm).forward is not Norm.forward
    return None if norm.batch_statistics or own_forward else _call
