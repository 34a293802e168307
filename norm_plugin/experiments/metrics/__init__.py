"""The metrics, one file each. Importing this registers them."""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.experiments.metrics.base import (
    AVERAGE,
    BEST,
    METRICS,
    Metric,
    Scores,
    find_metric,
    register_metric,
)

__all__ = ["AVERAGE", "BEST", "METRICS", "Metric", "Scores", "find_metric", "register_metric"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
