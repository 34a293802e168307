"""Fused forms of the norms: the same values, gradients and statistics in fewer passes.

    >>> from norm_plugin.norms import build_norm    # gives the fused form where there is one
    >>> from norm_plugin.kernels import set_kernels
    >>> set_kernels(model, "off")                   # back to plain torch

A fused form has the stem of its norm's file. Importing this package lets ``build_norm`` give
them; ``norms/`` knows nothing of it.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.kernels._choice import AUTO, KERNELS, OFF, VARIABLE, describe, resolve, there
from norm_plugin.kernels._fused import give_fused_form, has_fused_form, set_kernels
from norm_plugin.norms._registry import AFTER_BUILDING

__all__ = [
    "AUTO",
    "KERNELS",
    "OFF",
    "VARIABLE",
    "describe",
    "has_fused_form",
    "resolve",
    "set_kernels",
    "there",
]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

if give_fused_form not in AFTER_BUILDING:
    AFTER_BUILDING.append(give_fused_form)
