"""Wrapping a function of fairseq, where it has no hook; the wrapper does what it always did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
MARK = "wrapped_by_the_norms"


def wrap_once(owner: Any, name: str, around: Callable[[Function], Function]) -> None:
    """Put ``around(function)`` in the place of ``owner.name``, once a process."""
    function = getattr(owner, name)
    if not hasattr(function, MARK):
        wrapper = around(function)
        setattr(wrapper, MARK, True)
        setattr(owner, name, wrapper)
