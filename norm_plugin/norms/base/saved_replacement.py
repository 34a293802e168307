"""What ``replace_norms`` did to a model of transformers, in the configuration that it saves.

It is written when the model is saved, not before: a part of a model does not know the whole, and
several models may share one configuration.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from norm_plugin.norms.base.selection import Patterns

KEY = "replaced_norms"
"""The attribute of the configuration, and its key in config.json."""
CLASS, PATH = "in", "at"
"""The class and the path of the module, maybe a part of the saved one, that a call was given."""
CALLS = "_calls_of_replace_norms"
"""The attribute of a module with its :class:`Calls`."""


class Call(NamedTuple):
    """The arguments of ``replace_norms``, in types that JSON has."""

    name: str
    mask: str | None
    batch_first: bool
    causal: bool | None
    only: Patterns
    keep: Patterns
    options: dict[str, Any]


class Calls:
    """The calls of ``replace_norms`` with one module, each with its time, in nanoseconds."""

    def __init__(self) -> None:
        self.timed: list[tuple[int, Call]] = []
        _write_when_saved()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was copied, or pickled in another process."""
        vars(self).update(state)
        _write_when_saved()


def record_replacement(model: nn.Module, call: Call) -> None:
    """Let ``model`` remember a call, for the configuration of what is saved with it inside."""
    vars(model).setdefault(CALLS, Calls()).timed.append((time.time_ns(), call))


def recorded_replacements(model: nn.Module, config: Any) -> Iterator[tuple[nn.Module, Call]]:
    """Yield each recorded call, in order, with the part of ``model`` to which it belongs.

    Raises:
        ValueError: there is none, or no part of ``model`` is of its class.
    """
    entries = getattr(config, KEY, [])
    if not entries:
        raise ValueError(
            f"the configuration of this {type(model).__name__} has no {KEY}: no norms were "
            "replaced in it, so load it by from_pretrained; or in a module around it, so replace "
            "them again and load its weights then"
        )
    for entry in entries:
        arguments = dict(entry)
        name, path = arguments.pop(CLASS), arguments.pop(PATH)
        parts = {at: part for at, part in model.named_modules() if type(part).__name__ == name}
        if path not in parts and len(parts) != 1:
            raise ValueError(
                f"norms were replaced in a {name}, which this {type(model).__name__} does not "
                "have: load the class that was saved"
            )
        yield parts[path if path in parts else next(iter(parts))], Call(**arguments)


def _write_when_saved() -> None:
    """Let ``save_pretrained`` of transformers, if it is imported, write the recorded calls."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is not None:
        _patch(library.PreTrainedModel)


@functools.cache
def _patch(cls: Any) -> None:
    save = cls.save_pretrained

    @functools.wraps(save)
    def save_pretrained(model: Any, *args: Any, **kwargs: Any) -> Any:
        entries = list(_entries(model))
        if entries:
            setattr(model.config, KEY, entries)
        elif hasattr(model.config, KEY):  # of another model
            delattr(model.config, KEY)
        return save(model, *args, **kwargs)

    cls.save_pretrained = save_pretrained


def _entries(model: nn.Module) -> Iterator[dict[str, Any]]:
    timed = [
        (when, path, type(part).__name__, call)
        for path, part in model.named_modules()
        if CALLS in vars(part)
        for when, call in vars(part)[CALLS].timed
    ]
    for _, path, name, call in sorted(timed, key=lambda each: each[0]):
        yield {CLASS: name, PATH: path, **call._asdict()}
