"""The slow transcription of every norm by its name, and the options that each is tested with.

Every module of this folder is imported here: the transcription of a new norm is a new file, with
the decorator ``transcribes`` of ``base.py``.
"""

from __future__ import annotations

import importlib
import pkgutil

from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.norms.base.running_moments import RunningMomentsNorm
from reference.base import ENTRIES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

REFERENCES = {name: entry.make for name, entry in ENTRIES.items()}
CASES = [
    (name, options)
    for name in NORM_TYPES
    for options in (ENTRIES[name].variants if name in ENTRIES else ({},))
]
WITH_MOMENTS = [name for name in NORM_TYPES if issubclass(norm_spec(name).cls, RunningMomentsNorm)]
"""The norms that subtract the mean of a batch."""
PAPER_NAMES = {"weight": "gamma", "bias": "beta"}


def transcription(name, norm, **options):
    """The transcription of ``norm``, which is norm ``name`` with ``options``."""
    defaults = {option.name: option.default for option in norm_spec(name).options}
    parameters = {
        PAPER_NAMES.get(key, key): parameter.detach().double().numpy()
        for key, parameter in norm.named_parameters()
    }
    return REFERENCES[name](norm.dim, **parameters, **{**defaults, **options})
