"""Fused forms of the norms: the same values, gradients and statistics in fewer passes.

    >>> from norm_plugin.kernels import set_kernels
    >>> set_kernels(model, "off")   # every norm of ours in the model computes in plain torch
    >>> set_kernels(model, "auto")  # by its fused form where there is one, as when it was built

The files of the norms do not depend on this package; ``build_norm`` calls it.
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
    describe,
    has_kernels,
    resolve,
)
from norm_plugin.kernels.fused_forms import has_fused_form, set_kernels

__all__ = [
    "AUTO",
    "KERNELS",
    "OFF",
    "VARIABLE",
    "describe",
    "has_fused_form",
    "has_kernels",
    "resolve",
    "set_kernels",
]

for _module in pkgutil.iter_modules(fused.__path__):
    importlib.import_module(f"{fused.__name__}.{_module.name}")
