"""How a function of fairseq is wrapped: the registry of the wrappers in ``patches.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Around = Callable[[Function], Function]
MARK = "wrapped_by_the_norms"
PATCHES: dict[str, tuple[Any, str, Around]] = {}
"""By the full name of the function: its owner, its name there, and what is put around it."""


def patches(owner: Any, name: str) -> Callable[[Around], Around]:
    """Decorator: what it decorates makes a wrapper of ``owner.name``, a function of fairseq."""
    module = getattr(owner, "__module__", None)
    path = f"{module}.{owner.__qualname__}" if module else owner.__name__

    def register(around: Around) -> Around:
        PATCHES[f"{path}.{name}"] = (owner, name, around)
        return around

    return register


def wrap_once(owner: Any, name: str, around: Around) -> None:
    """Put ``around(function)`` in the place of ``owner.name``, once a process."""
    function = getattr(owner, name)
    if not hasattr(function, MARK):
        wrapper = around(function)
        setattr(wrapper, MARK, True)
        setattr(owner, name, wrapper)
