"""``--norm-kernels compile``: torch.compile of the plain form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from norm_plugin.norms import Norm
from norm_plugin.norms.base.contract import FusedForm

_COMPILED: dict[type, Any] = {}


def _compiled(cls: type[Norm]) -> Any:
    """``normalize`` of a kind of norm; torch bounds how often it compiles each function anew."""
    if cls not in _COMPILED:
        _COMPILED[cls] = torch.compile(cls.normalize, dynamic=True)
    return _COMPILED[cls]


def _call(norm: Norm, x: Tensor, valid: Tensor | None) -> Tensor:
    upcast = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    y: Tensor = _compiled(type(norm))(norm, upcast, None)
    return y.to(x.dtype)


def compiled_form(norm: Norm) -> FusedForm | None:
    """The compiled form of ``norm``; None for statistics over positions.

    What those norms keep from one batch to the next, and count, is no part of a graph. A norm with
    a forward of its own, such as ``layernorm``, which is torch's, would not use the form either.
    """
    own_forward = type(norm).forward is not Norm.forward
    return None if norm.batch_statistics or own_forward else _call
