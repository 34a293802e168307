"""The registry of norms: what exists, with which options, from which paper.

A norm declares itself once. The keyword arguments of its constructor are its options, with
their types and defaults; the ``Options:`` section of its docstring explains them. Flags, YAML
keys, tables and the parameters of tests are derived from them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

from norm_plugin.declarations.flags import (
    CHOICES,
    NORM_TYPE,
    PLACEMENT,
    VALUES,
    flag_of,
    option_field,
)
from norm_plugin.declarations.option import (
    RELEASED,
    VARIANT,
    NormDeclaration,
    Option,
    option_helps,
    variant_option,
)
from norm_plugin.norms.base.contract import Norm

NormClass = TypeVar("NormClass", bound=type[Norm])


@dataclass(frozen=True, kw_only=True)
class NormSpec(NormDeclaration):
    """The declaration of a registered norm, with its classes.

    Attributes:
        released_cls: the norm of ``variant=released``; None: there is no such variant.
    """

    cls: type[Norm]
    released_cls: type[Norm] | None = None

    @property
    def batch_statistics(self) -> bool:
        """True when training mixes positions: see :class:`Norm`."""
        return self.cls.batch_statistics

    def class_of(self, options: Mapping[str, Any]) -> type[Norm]:
        """Return the class of a norm with these options: that of its ``variant``."""
        released = self.released_cls if options.get(VARIANT) == RELEASED else None
        return released or self.cls

    def build(self, dim: int, **options: Any) -> Norm:
        """Build a norm over ``dim`` channels; raise ValueError for a wrong option.

        It computes by the kernels of its device where there are some: see
        :func:`norm_plugin.kernels.set_kernels`.
        """
        # Here, since kernels depend on the norms; a build, not an import, may take their time
        from norm_plugin.kernels import set_kernels

        parsed = self.parse(options)
        chosen = set() if self.released_cls is None else {VARIANT}  # by the class itself
        norm = self.class_of(parsed)(dim, **{k: v for k, v in parsed.items() if k not in chosen})
        norm.built_with = {option.name: option.default for option in self.options} | parsed
        set_kernels(norm, None)
        return norm


_SPECS: dict[str, NormSpec] = {}
NORM_TYPES: list[str] = []
"""The names of all norms, in the order of registration."""


def register_norm(
    name: str, *, formula: str, paper: str, released: str = "", paper_read: bool = True
) -> Callable[[NormClass], NormClass]:
    """Class decorator: make a :class:`Norm` known as ``--norm-type name``.

    Args:
        name: the value of the flag.
        formula: one line, in the paper's symbols.
        paper: authors, year and equation.
        released: how the paper's public code differs from this, if there is any; one line.
        paper_read: False if the paper itself could not be read.

    Raises:
        ValueError: the name is taken or not a word, an option has no explanation, a type that
            cannot be a flag, or the name of another flag, or another norm has an option of that
            name with another type.
    """
    check_name("norm", name)

    def register(cls: NormClass) -> NormClass:
        if name in _SPECS:
            raise ValueError(f"norm {name!r} is registered twice: {_SPECS[name].cls} and {cls}")
        options = _declared_options(cls)
        for spec in _SPECS.values():
            _check_same_types(name, options, spec)
        _SPECS[name] = NormSpec(name, formula, paper, options, released, paper_read, cls=cls)
        NORM_TYPES.append(name)
        return cls

    return register


def register_released(name: str, *, help: str) -> Callable[[NormClass], NormClass]:
    """Class decorator: make a class with the options of norm ``name`` its ``variant=released``.

    Args:
        help: the explanation of the option.
    """

    def register(cls: NormClass) -> NormClass:
        spec = norm_spec(name)
        options = (*spec.options, variant_option(help))
        _SPECS[name] = replace(spec, released_cls=cls, options=options)
        return cls

    return register


def check_name(kind: str, name: str) -> None:
    """Raise ValueError unless ``name``, of a norm or a placement, can be a value of a flag.

    It also becomes a key of YAML and a part of the names of folders.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            f"{kind} {name!r} cannot have that name; use letters, digits, - and _, and begin with "
            "a letter or a digit"
        )


def norm_spec(name: str) -> NormSpec:
    """Return the declaration of norm ``name``; raise ValueError listing all if it is unknown."""
    if name not in _SPECS:
        raise ValueError(f"unknown norm {name!r}; choose from {', '.join(NORM_TYPES)}")
    return _SPECS[name]


def declared_options() -> dict[str, list[tuple[str, Option]]]:
    """Return, for each name of an option, the norms that have it, with their form of it."""
    options: dict[str, list[tuple[str, Option]]] = {}
    for name in NORM_TYPES:
        for option in norm_spec(name).options:
            options.setdefault(option.name, []).append((name, option))
    return options


def build_norm(name: str, dim: int, **options: Any) -> Norm:
    """Build norm ``name`` over ``dim`` channels.

    Args:
        name: one of ``NORM_TYPES``.
        dim: size of the last dimension of its input.
        options: the norm's own options; ``norm-plugin list`` shows them.

    Raises:
        ValueError: the norm or an option is unknown, or a value is not allowed.
    """
    return norm_spec(name).build(dim, **options)


def _declared_options(cls: type[Norm]) -> tuple[Option, ...]:
    """Return the constructor's keyword-only arguments, explained by the class docstring."""
    hints = get_type_hints(cls.__init__)
    helps = option_helps(inspect.getdoc(cls) or "")
    options = []
    for parameter in inspect.signature(cls.__init__).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if is_reserved(parameter.name):
            flag = flag_of(option_field(parameter.name))
            raise ValueError(
                f"{cls.__name__}: option {parameter.name!r} would have the flag {flag}, which has "
                "another meaning in the models; give the option another name"
            )
        if parameter.name not in helps and sys.flags.optimize < 2:  # -OO removes docstrings
            raise ValueError(
                f"{cls.__name__}: explain option {parameter.name!r} in the docstring, "
                f"on a line of its own under 'Options:'"
            )
        kind, choices = _flag_type(cls, parameter.name, hints[parameter.name])
        explained = helps.get(parameter.name, "")
        options.append(Option(parameter.name, kind, parameter.default, explained, choices))
    return tuple(options)


def is_reserved(option: str) -> bool:
    """Return whether the flag of an option of this name is another flag of the models."""
    key = option_field(option)
    sites = key.startswith((f"{NORM_TYPE}_", f"{PLACEMENT}_"))
    return sites or key in (NORM_TYPE, *CHOICES, *VALUES)


def _flag_type(cls: type[Norm], name: str, hint: Any) -> tuple[type, tuple[str, ...]]:
    """Return the type and the choices of an option, given its annotation."""
    choices = getattr(hint, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return str, tuple(choices)
    if hint in (int, float, str):
        return hint, ()
    raise ValueError(
        f"{cls.__name__}: option {name!r} is of type {hint}; a flag can be int, float, str "
        f"or a Literal of strings"
    )


def _check_same_types(name: str, options: tuple[Option, ...], other: NormSpec) -> None:
    """Raise ValueError if norms have an option in different types: they share one flag."""
    types = {option.name: option.type for option in other.options}
    for option in options:
        if types.get(option.name, option.type) is not option.type:
            raise ValueError(
                f"option {option.name!r} is {option.type.__name__} in norm {name!r} "
                f"but {types[option.name].__name__} in {other.name!r}"
            )
