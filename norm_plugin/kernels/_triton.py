"""The passes on a CUDA device, in Triton."""

from __future__ import annotations

import functools
from typing import Any, Tuple, Union


@functools.lru_cache(maxsize=None)
def load() -> Tuple[Union[Any, None], str]:
    """The functions of ``_ops.Ops``, or None; and what to say of them."""
    return None, "not there yet"
