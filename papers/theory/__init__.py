"""Measured claims of the papers about a Transformer at the start of training; one file each."""

from __future__ import annotations

import importlib
import pkgutil

from papers.theory.claim import Claim

_modules = [
    importlib.import_module(f"{__name__}.{info.name}")
    for info in pkgutil.iter_modules(__path__)
    if info.name not in ("command", "__main__")  # which import this package
]
_claims = [Claim.of_module(module) for module in _modules if hasattr(module, "SECTION")]

CLAIMS = {claim.name: claim for claim in sorted(_claims, key=lambda claim: claim.section)}
"""Every claim by its name, in the order of the page."""
