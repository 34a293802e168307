"""Measured claims of the papers about a Transformer at the start of training; one file each.

A claim is a module whose docstring has its title and the claim with its source, and that has

    measure(options, placement)   yields the rows of measurements of one placement, and
    measure_once(options)         those of what does not depend on one; a claim may lack one of both
    CASE                          the columns that identify a case
    MAY_LACK                      numeric columns that some rows lack, if there are any
    verdicts(frame)               compares the stated with the measured: rows of :func:`verdict`
    tables(frame)                 more tables of the measurements, if there are any
    plot(frame, axes), CAPTION    draw a figure, if there is one, and its caption
"""

from __future__ import annotations

import importlib
from typing import Any

NAMES = (
    "hidden-states",
    "last-layer",
    "every-layer",
    "trained-layers",
    "concentration",
    "jacobian",
    "detached",
    "adaptive-scale",
    "lipschitz",
    "bounded-gradient",
    "batch-gradients",
    "gain-over-psi",
    "assumption-two",
    "running-statistics",
)
"""The claims in the order of the page."""
CLAIMS: dict[str, Any] = {
    name: importlib.import_module(f"{__name__}.{name.replace('-', '_')}") for name in NAMES
}
"""The module of each claim by its name."""
