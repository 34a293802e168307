"""The declaration of a norm, and of each of its options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from norm_plugin.declarations.flags import flag_of, option_field

OptionValue = int | float | str
VARIANT, PAPER, RELEASED = "variant", "paper", "released"
SWITCH = {"on", "off"}
"""The choices of an option that YAML may pass as a boolean, since it reads ``on`` as True."""


@dataclass(frozen=True)
class Option:
    """An option of a norm, with one name in Python, as a flag and in YAML.

    Attributes:
        type: int, float or str.
        choices: the allowed strings of a ``Literal`` option, else empty.
    """

    name: str
    type: type
    default: OptionValue
    help: str
    choices: tuple[str, ...] = ()

    def parse(self, value: Any) -> OptionValue:
        """Convert ``value`` to the option's type; YAML, for example, passes ``1e-5`` as a string.

        Raises:
            ValueError: the value is not of that type, not finite, an eps below 0, or none of the
                choices.
        """
        if isinstance(value, bool) and set(self.choices) == SWITCH:
            value = "on" if value else "off"
        try:
            parsed = self.type(value)
        except (TypeError, ValueError, OverflowError):  # the last is int() of an infinity
            parsed = None
        loses = self.type is int and parsed is not None and float(parsed) != float(value)
        if parsed is None or loses or isinstance(value, bool):
            raise ValueError(f"{self.name} is {value!r}; it must be of type {self.type_name}")
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise ValueError(f"{self.name} is {parsed}; it must be finite")
        if self.name == "eps" and isinstance(parsed, float) and parsed < 0:
            raise ValueError(f"eps is {parsed}; it must be 0 or more")
        if self.choices and parsed not in self.choices:
            raise ValueError(f"{self.name} is {value!r}; choose from {', '.join(self.choices)}")
        return parsed

    @property
    def flag(self) -> str:
        """The command-line flag: ``alpha_fwd`` -> ``--norm-alpha-fwd``."""
        return flag_of(option_field(self.name))

    @property
    def type_name(self) -> str:
        """The type as shown to users: ``float``, or ``paper|released``."""
        return "|".join(self.choices) or self.type.__name__


@dataclass(frozen=True)
class NormDeclaration:
    """The declaration of a norm.

    Attributes:
        formula: one line, in the paper's symbols.
        paper: authors, year and equation.
        options: in the order of the constructor.
        released: how the public code of the paper differs.
        paper_read: False if the paper could not be read, so that the norm follows its released
            code; the norm's file says what was assumed.
    """

    name: str
    formula: str
    paper: str
    options: tuple[Option, ...]
    released: str = ""
    paper_read: bool = True

    def has_option(self, name: str) -> bool:
        """Return whether the norm has an option of that name."""
        return any(option.name == name for option in self.options)

    def parse(self, options: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Return ``options`` in their types; raise ValueError for a wrong one."""
        known = {option.name: option for option in self.options}
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(
                f"norm {self.name!r} has no option {', '.join(map(repr, unknown))}; "
                f"its options are {', '.join(known)}"
            )
        return {name: known[name].parse(value) for name, value in options.items()}


def variant_option(text: str) -> Option:
    """Return the option that chooses the released variant of a norm, with its explanation."""
    return Option(VARIANT, str, PAPER, text, (PAPER, RELEASED))


def option_helps(doc: str) -> dict[str, str]:
    """Return the ``name: explanation`` entries of the section ``Options:`` of a docstring.

    An entry may span lines.
    """
    section = doc.partition("Options:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8,}.+)*)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
