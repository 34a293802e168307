"""Repeat the launches of a call for other tensors of the same sizes.

What leads from a call to its launches (checks, tiles, allocations, keys of compiled kernels) costs
the host several times as much as the launches, and depends only on sizes and options. The first
calls of a function for some sizes run it; then the launches of one call are recorded: the place of
each argument in a given tensor, or in one that the function allocates by ``tiles.empty``. Later
calls repeat them in C++ with the new tensors' addresses, which launchers take as numbers. Without
the C++ extension each call runs the function: the kernels and their arguments are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from norm_plugin.kernels.cpu import loading
from norm_plugin.kernels.triton import tiles


def replayed(tensors: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: repeat the launches of earlier calls.

    The function depends on the values of its arguments only by launching kernels, and allocates by
    ``tiles.empty``. It returns a tensor, or a tuple of tensors and None.

    Args:
        tensors: how many of the first arguments are tensors or None; the first one has the sizes.
            The others are numbers, rules or None.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        native, _ = loading.load()
        if native is None:
            return function

        def record(*args: Any) -> tuple[Any, Any]:
            """Return the results of a call, and its program; None if it cannot be repeated."""
            with tiles.recording() as recorded:
                results = function(*args)
            program = _program(recorded, args[:tensors], results)
            return results, None if program is None else native.Program(*program)

        repeated: Callable[..., Any] = native.Replayed(record, tensors)
        return repeated

    return decorate


def _program(
    recorded: tiles.Recording, given: tuple[Tensor | None, ...], results: Any
) -> tuple[Any, ...] | None:
    """Return what the C++ class ``Program`` is made of; None if a launch cannot be repeated."""
    if not recorded.launches:
        return None
    known = [*given, *recorded.empties]
    launches = []
    for launch in recorded.launches:
        if launch is None:
            return None
        run, arguments = launch
        constants, places = list(arguments), []
        for place, argument in enumerate(arguments):
            if not isinstance(argument, Tensor):
                continue
            if any(argument is each for each in recorded.fixed):
                constants[place] = argument.data_ptr()
                continue
            found = _find(argument, known)
            if found is None:
                return None
            constants[place] = None  # a program keeps no memory of the call that it repeats
            places.append((place, *found))
        launches.append((run, tuple(constants), places))
    ends = []
    for result in results if isinstance(results, tuple) else (results,):
        found = (-1, 0) if result is None else _find(result, known)
        if found is None:
            return None
        ends.append((*found, () if result is None else tuple(result.shape)))
    empties = [(tuple(each.shape), each.dtype) for each in recorded.empties]
    return empties, launches, ends


def _find(part: Tensor, known: list[Tensor | None]) -> tuple[int, int] | None:
    """Return which of the tensors ``part`` is or lies in, and at which byte; None: in none."""
    for number, whole in enumerate(known):
        if whole is part:
            return number, 0
    for number, whole in enumerate(known):
        offset = -1 if whole is None else part.data_ptr() - whole.data_ptr()
        if whole is not None and 0 <= offset < whole.nbytes:
            return number, offset
    return None
