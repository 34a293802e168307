"""What ``replace_norms`` did to a model of transformers, in the model's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from norm_plugin.norms.base.selection import Patterns

KEY = "replaced_norms"
"""The attribute of the configuration, and its key in config.json."""
CLASS = "in"
"""The class of the model, maybe a part of the saved one, to which a call was applied."""


class Call(NamedTuple):
    """The arguments of ``replace_norms``."""

    name: str
    mask: str | None
    batch_first: bool
    causal: bool | None
    only: Patterns
    keep: Patterns
    options: dict[str, Any]


def record_replacement(model: nn.Module, call: Call) -> None:
    """Add a call to the configuration of ``model``, if it is one of transformers."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "model_type"):
        entry = {CLASS: type(model).__name__, **call._asdict()}
        setattr(config, KEY, [*getattr(config, KEY, []), entry])


def recorded_replacements(model: nn.Module, config: Any) -> Iterator[tuple[nn.Module, Call]]:
    """Yield each recorded call, in order, with the part of ``model`` to which it belongs.

    Raises:
        ValueError: there is none, or no part of ``model`` is of its class.
    """
    entries = getattr(config, KEY, [])
    if not entries:
        raise ValueError(
            f"the configuration of this {type(model).__name__} has no {KEY}: it was saved without "
            "replaced norms, so load it by from_pretrained"
        )
    for entry in entries:
        arguments = dict(entry)
        name = arguments.pop(CLASS)
        parts = [part for part in model.modules() if type(part).__name__ == name]
        if not parts:
            raise ValueError(
                f"norms were replaced in a {name}, which this {type(model).__name__} does not "
                "have: load the class that was saved"
            )
        yield parts[0], Call(**arguments)
