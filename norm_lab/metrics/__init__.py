"""The metrics, one file each; importing this package registers them."""

from __future__ import annotations

import importlib
import pkgutil

from norm_lab.metrics.base import (
    AVERAGE,
    BEST,
    METRICS,
    Metric,
    Scores,
    find_metric,
    register_metric,
    score_lines,
)

__all__ = [
    "AVERAGE",
    "BEST",
    "METRICS",
    "Metric",
    "Scores",
    "find_metric",
    "register_metric",
    "score_lines",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
