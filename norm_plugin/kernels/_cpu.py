"""The passes on the CPU: the C++ extension of ``csrc/``, where it was built."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Tuple, Union

import torch

EXTENSION = "norm_plugin.kernels._native"
LEVELS = {"AVX512": "avx512", "AVX2": "avx2"}
"""What torch finds on the machine, or is told by ATEN_CPU_CAPABILITY, and our word for it."""


@functools.lru_cache(maxsize=None)
def load() -> Tuple[Union[Any, None], str]:
    """The extension, which has the functions of ``_ops.Ops``, or None; and what to say of it."""
    try:
        native = importlib.import_module(EXTENSION)
    except ImportError as error:
        return None, (
            f"not built, or for another torch ({str(error).splitlines()[0]}); with a C++ compiler, "
            "pip install --no-build-isolation --no-deps of the project builds it"
        )
    level = LEVELS.get(torch.backends.cpu.get_cpu_capability(), "plain")
    if not native.machine_has(level):
        level = "plain"
    native.use_level(level)
    return native, f"C++, {level}"
