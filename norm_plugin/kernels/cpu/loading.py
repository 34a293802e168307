"""Load the passes on the CPU: the C++ extension of ``csrc/``, if it was built."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch

EXTENSION = "norm_plugin.kernels.cpu._native"
LEVELS = {"AVX512": "avx512", "AVX2": "avx2"}
"""Our name for the level that torch detects or gets from ATEN_CPU_CAPABILITY."""
PLAIN = "plain"
VARIABLE = "NORM_KERNELS_LEVEL"
"""Names the level that the extension uses, whatever torch uses: for tests and measurements."""


@functools.cache
def load() -> tuple[Any | None, str]:
    """Return the extension, with the functions of a backend, or None; and a description.

    Raises:
        ValueError: VARIABLE names a level that does not exist.
    """
    try:
        native = importlib.import_module(EXTENSION)
    except ImportError as error:
        return None, (
            f"not built, or for another torch ({str(error).splitlines()[0]}); to build it with a "
            "C++ compiler, pip install the project with --no-build-isolation --no-deps"
        )
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
