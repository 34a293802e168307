"""Load the passes on the CPU: the C++ extension of ``csrc/``, if it was built."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch

from norm_plugin.kernels.cpu.sources import digest

EXTENSION = "norm_plugin.kernels.cpu._native"
LEVELS = {"AVX512": "avx512", "AVX2": "avx2"}
"""Our name for the level that torch detects or gets from ATEN_CPU_CAPABILITY."""
PLAIN = "plain"
VARIABLE = "NORM_KERNELS_LEVEL"
"""Names the level that the extension uses, whatever torch uses: for tests and measurements."""
TO_BUILD = (
    "to build them with a C++ compiler, run scripts/setup.sh in a checkout, or pip install the "
    "project with --no-build-isolation --no-deps"
)


@functools.cache
def load() -> tuple[Any | None, str]:
    """Return the extension, with the functions of a backend, or None; and a description.

    Raises:
        ValueError: VARIABLE names a level that does not exist.
    """
    try:
        native = importlib.import_module(EXTENSION)
    except ImportError as error:
        why = str(error).splitlines()[0]
        return None, f"not built, or for another torch ({why}); {TO_BUILD}"
    if getattr(native, "sources", "") != digest():
        return None, f"built from other code than that of this version; {TO_BUILD}"
    level = chosen_level(native)
    native.use_level(level)
    return native, f"C++, {level}"


def chosen_level(native: Any) -> str:
    """Return the level that VARIABLE names, else torch's own if the machine has it.

    Raises:
        ValueError: an unknown level, or one that this machine lacks.
    """
    given = os.environ.get(VARIABLE)
    if given is None or given == "":
        level = LEVELS.get(torch.backends.cpu.get_cpu_capability(), PLAIN)
        return level if native.machine_has(level) else PLAIN
    levels = [level for level in (PLAIN, "avx2", "avx512") if native.machine_has(level)]
    if given not in levels:
        raise ValueError(f"{VARIABLE} is {given!r}; this machine has {', '.join(levels)}")
    return given
