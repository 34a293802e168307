"""Fused forms of the norms: the same values, gradients and statistics in fewer passes.

    >>> from norm_plugin.norms import build_norm    # gives the fused form where there is one
    >>> from norm_plugin.kernels import set_kernels
    >>> set_kernels(model, "off")                   # back to plain torch

Importing this package lets ``build_norm`` give
them; ``norms/`` knows nothing of it.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.kernels import fused
from norm_plugin.kernels.choice import (
    AUTO,
    KERNELS,
    OFF,
    VARIABLE,
    HasKernelChoice,
    describe,
    has_kernels,
    resolve,
)
from norm_plugin.kernels.fused_forms import give_fused_form, has_fused_form, set_kernels
from norm_plugin.norms.base.registry import AFTER_BUILDING

__all__ = [
    "AUTO",
    "KERNELS",
    "OFF",
    "VARIABLE",
    "HasKernelChoice",
    "describe",
    "has_fused_form",
    "has_kernels",
    "resolve",
    "set_kernels",
]

for _module in pkgutil.iter_modules(fused.__path__):
    importlib.import_module(f"{fused.__name__}.{_module.name}")

if give_fused_form not in AFTER_BUILDING:
    AFTER_BUILDING.append(give_fused_form)
