"""The records of which a run consists: its arm, and the preparation of its data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from norm_plugin.declarations.flags import flag_of

Value = Any
"""The value of a setting: None, a truth value, a number, text, or a list of these."""
Changes = Mapping[str, Value]
"""Settings that differ from the experiment's, by their dotted names: ``optimization.lr``."""
BY_VALUE = ("placement", "init", "variant", "-name")
"""Settings that a name shows by their value only; ``-name`` is the short form of ``_name``."""
PLACEMENT = "model.norm_placement"
MAX_LENGTH = 120  # a file name may have 255 characters, and that of the arm is part of it
SHORTER = {"distributed_world_size": "workers"}
"""Shorter names of settings."""
UNUSUAL = re.compile(r"[^A-Za-z0-9._]+")
"""The characters that file names should not have."""


@dataclass(frozen=True)
class Arm:
    """A norm with its placement, and the settings that differ from the experiment's.

    Attributes:
        placement: ``pre``, or ``encoder pre, decoder post``.
    """

    norm: str
    placement: str
    changes: Changes

    def file_name(self, without: Iterable[str] = ()) -> str:
        """Return a name for files: ``powernorm``, ``powernorm-layer-scale-groups-0``.

        It is the norm and the changes. If characters are replaced or the name is cut, a hash keeps
        the names of different arms distinct.

        Args:
            without: the changes that the name omits.
        """
        changes = {key: self.changes[key] for key in self.changes if key not in set(without)}
        name = "-".join([self.norm, *parts_of_name(changes)])[:MAX_LENGTH]
        if name != "-".join([self.norm, *_texts(changes)]):
            exact = "\0".join([self.norm, *(f"{key}={changes[key]}" for key in sorted(changes))])
            name += "-" + hashlib.sha256(exact.encode()).hexdigest()[:6]
        return name

    def short_title(self, without: Iterable[str] = ()) -> str:
        """Return the name in tables beside that of the placement, which it omits at its end."""
        changes = _in_order({key: self.changes[key] for key in self.changes if key not in without})
        at_end = [key for key in changes[-1:] if key == PLACEMENT]
        return self.file_name((*without, *at_end))


@dataclass(frozen=True)
class Preparation:
    """The program that prepares a corpus, and its options by name: ``split_seed``."""

    program: str
    options: Mapping[str, Value]

    def arguments(self) -> list[str]:
        """Return the options as arguments of the program."""
        return [text for key in self.options for text in (flag_of(key), str(self.options[key]))]


def placement_name(placements: Mapping[str, str]) -> str:
    """Return the name of the placements of the sides: ``pre``, ``encoder pre, decoder post``."""
    if len(set(placements.values())) == 1:
        return next(iter(placements.values()))
    return ", ".join(f"{side} {placement}" for side, placement in placements.items())


def common_changes(arms: Iterable[Changes]) -> dict[str, Value]:
    """Return the changes that several arms share; none for a single arm."""
    first, *others = arms
    missing = object()
    return {
        key: value
        for key, value in first.items()
        if others and all(changes.get(key, missing) == value for changes in others)
    }


def parts_of_name(changes: Changes) -> list[str]:
    """Return changes as parts of a name; those that are shown by their value come first."""
    return [UNUSUAL.sub("-", text).strip("-") for text in _texts(changes)]


def _texts(changes: Changes) -> list[str]:
    return [_text(key, changes[key]) for key in _in_order(changes)]


def _in_order(changes: Changes) -> list[str]:
    """Return the keys in the order of a name: those that are shown by their value come first."""
    return sorted(changes, key=lambda key: (_short_key(key) not in BY_VALUE, key))


def _text(key: str, value: Value) -> str:
    """Return one change as text: ``released``, ``alpha-fwd-0.95``, ``fp16``."""
    name = _short_key(key)
    if value is None:  # the experiment sets a value, and the run has the norm's default
        return f"default-{name}"
    if isinstance(value, str) and name in BY_VALUE:
        return value
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{name}-{value}"


def _short_key(key: str) -> str:
    name = key.rpartition(".")[2]
    return SHORTER.get(name, name).replace("_", "-").removeprefix("norm-")
