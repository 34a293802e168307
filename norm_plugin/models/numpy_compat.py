"""``numpy.compat.long``, which fairseq 0.12.2 uses and numpy 2 does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np


@contextmanager
def numpy_compat() -> Iterator[None]:
    """Within this context numpy has the name; other code that looks for it does not see it."""
    names = vars(np)
    if "compat" in names:
        yield
        return
    names["compat"] = SimpleNamespace(long=np.int64)
    try:
        yield
    finally:
        del names["compat"]
