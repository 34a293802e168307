"""Fused forms of the norms: the same values, gradients and statistics in fewer passes.

    >>> from norm_plugin.kernels import set_kernels
    >>> set_kernels(model, "auto")  # every norm of ours in the model computes by its fused form
    >>> set_kernels(model, "off")   # back to plain torch

``build_norm`` builds a norm in plain torch; ``norms/`` does not depend on this package.
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
from norm_plugin.kernels.fused_forms import has_fused_form, set_kernels

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
