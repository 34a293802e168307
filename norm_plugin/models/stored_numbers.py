"""Numpy's numbers in a checkpoint: fairseq stores some, which torch's safe loader does not know.

fairseq logs the counts of ``--eval-bleu`` as numpy arrays and some scores as numpy scalars, and its
trainer stores what was logged. Checkpoints saved here hold plain numbers and lists instead. Older
checkpoints hold numpy's pickles. :func:`allowing_numbers` lets the safe loader read these: arrays
of numbers, scalars and nothing else of numpy.

numpy's own ``dtype.__setstate__`` takes flags and fields from the file, by which bytes would be
read as addresses of objects. Therefore the classes below replace numpy's under numpy's names: they
accept only the name of a numeric type, its byte order, a shape and bytes.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

NUMBERS = re.compile("b1|[iu][1248]|f[248]|c8|c16")
"""The numeric types, as numpy's pickles name them."""
MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
"""The modules, in numpy 2 and numpy 1, of the functions that their pickles call."""

ARRAYS = (list, np.ndarray)


def refusal(what: str) -> pickle.UnpicklingError:
    """Return the error for content that is not a number, worded like torch's own."""
    return pickle.UnpicklingError(f"Can only read numbers of numpy, but got {what}")


class StoredType:
    """Replaces ``numpy.dtype``: a numeric type with a byte order."""

    def __init__(self, name: str, align: bool = False, copy: bool = True) -> None:
        if not (isinstance(name, str) and NUMBERS.fullmatch(name)):
            raise refusal(f"numpy.dtype({name!r})")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Set ``(version, byte order, subarray, names, fields, size, alignment, flags)``."""
        _, order, *others = state
        if others[:3] != [None, None, None]:
            raise refusal("a numpy.dtype with fields")
        self.dtype = self.dtype.newbyteorder(order)


class StoredArray(np.ndarray):
    """Replaces ``numpy.ndarray``: an array of numbers; if saved again, it is numpy's."""

    def __new__(cls) -> StoredArray:
        return super().__new__(cls, 0)

    def __setstate__(self, state: Any) -> None:
        """Set ``(version, shape, type, Fortran order, bytes)``."""
        _, shape, kind, fortran, content = state
        if not (isinstance(kind, StoredType) and isinstance(content, bytes)):
            raise refusal("a numpy.ndarray of something else")
        state = (1, shape, kind.dtype, bool(fortran), content)
        super().__setstate__(state)

    def __reduce__(self) -> Any:
        return np.array(self).__reduce__()


def _reconstruct(cls: type, shape: object, kind: object) -> StoredArray:
    """Replace numpy's function of this name: create the array that ``__setstate__`` fills."""
    if cls is not StoredArray:
        raise refusal(f"a numpy.ndarray of class {cls}")
    return StoredArray()


def _scalar(kind: StoredType, content: bytes) -> bool | float | complex:
    """Replace numpy's function of this name: create a plain number."""
    if not (isinstance(kind, StoredType) and isinstance(content, bytes)):
        raise refusal("a scalar of numpy of something else")
    number: bool | float | complex = np.frombuffer(content, kind.dtype, count=1)[0].item()
    return number


FUNCTIONS = {"_reconstruct": _reconstruct, "scalar": _scalar}
STAND_INS: dict[str, Any] = {
    "numpy.dtype": StoredType,
    "numpy.ndarray": StoredArray,
    **{f"{module}.{name}": used for module in MODULES for name, used in FUNCTIONS.items()},
}


@contextlib.contextmanager
def allowing_numbers() -> Iterator[None]:
    """Return a context in which torch's safe loader reads numpy's arrays of numbers and scalars.

    If the user has allowed numpy's own classes, those are used.
    """
    allowed = torch.serialization.get_safe_globals()
    classes = {given[0] if isinstance(given, tuple) else given for given in allowed}
    stand_ins: list[Any] = (
        [] if classes & {np.dtype, np.ndarray} else [(v, k) for k, v in STAND_INS.items()]
    )
    with torch.serialization.safe_globals(stand_ins):
        yield


def plain_numbers(stored: Any) -> Any:
    """Return what is to be saved, with plain numbers and lists instead of numpy's."""
    kind: Any = type(stored)
    if isinstance(stored, (np.ndarray, np.generic)) and stored.dtype.kind in "biufc":
        return stored.tolist()
    if kind in (dict, OrderedDict):
        return kind((key, plain_numbers(value)) for key, value in stored.items())
    if kind in (list, tuple):
        return kind(map(plain_numbers, stored))
    return stored


def arrays_in_meters(state: Mapping[str, Any]) -> None:
    """Convert the meters in a loaded checkpoint back to arrays, with which fairseq computes.

    Args:
        state: the content of the checkpoint.
    """
    metrics = (state.get("extra_state") or {}).get("metrics") or {}
    for meters in metrics.values():
        for *_, values in meters:
            values.update({k: np.array(v) for k, v in values.items() if isinstance(v, ARRAYS)})
