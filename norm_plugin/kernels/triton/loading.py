"""Load the passes on a CUDA device, in Triton, if it can be imported."""

from __future__ import annotations

import functools
import importlib
from typing import Any

PASSES = "norm_plugin.kernels.triton.passes"


@functools.cache
def load() -> tuple[Any | None, str]:
    """Return the module with the functions of a backend, or None; and a description.

    Triton is imported only here, so that it does not slow down users of a CPU.
    """
    try:
        triton = importlib.import_module("triton")
        passes = importlib.import_module(PASSES)
    except ImportError as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, f"cannot be imported ({first}); a CUDA build of torch includes triton"
    return passes, f"Triton {triton.__version__}"
