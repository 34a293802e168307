"""Where the norms of a Transformer are: one file per placement.

Every module of this folder is imported here, so a new placement is a new file and nothing else.
Your own folder, given to ``--user-dir``, can register placements in the same way.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.placements.base import (
    BRANCHES,
    FINAL,
    IN_ATTENTION,
    INNER,
    INPUT,
    NOT_ONLY_INTO_MAPS,
    ON_THE_STREAM,
    OUTPUT,
    PLACEMENTS,
    STREAM,
    SUM,
    LayerPlace,
    Placement,
    Stream,
    fairseqs_modules,
    first_stream,
    overrides,
    placement_class,
    register_placement,
    split_streams,
)

__all__ = [
    "BRANCHES",
    "FINAL",
    "INNER",
    "INPUT",
    "IN_ATTENTION",
    "NOT_ONLY_INTO_MAPS",
    "ON_THE_STREAM",
    "OUTPUT",
    "PLACEMENTS",
    "STREAM",
    "SUM",
    "LayerPlace",
    "Placement",
    "Stream",
    "fairseqs_modules",
    "first_stream",
    "overrides",
    "placement_class",
    "register_placement",
    "split_streams",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
