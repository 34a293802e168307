"""The fairseq side. Importing it registers the models and architectures, and patches fairseq.

Every module of this folder is imported here, so a model of another task is a new file.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.models.folding import fold_norms
from norm_plugin.models.patches import install
from norm_plugin.models.translation import NormTransformerModel

__all__ = ["NormTransformerModel", "fold_norms"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

install()
