"""The passes on a CUDA device, in Triton, where that can be imported."""

from __future__ import annotations

import functools
import importlib
from typing import Any

PASSES = "norm_plugin.kernels.triton.passes"


@functools.cache
def load() -> tuple[Any | None, str]:
    """The module that has the functions of ``passes.Ops``, or None; and what to say of it.

    Only here is Triton imported, which no user of the CPU is to wait for.
    """
    try:
        triton = importlib.import_module("triton")
        passes = importlib.import_module(PASSES)
    except ImportError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, f"cannot be imported ({first}); a CUDA build of torch brings its triton along"
    return passes, f"Triton {triton.__version__}"
