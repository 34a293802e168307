"""Read the declarations of the norms and placements of this package from their source.

``register_norm``, ``register_released`` and ``register_placement`` are called with literals, and
the options of a norm are the keyword-only arguments of its constructor, whose types and defaults
are literals too. Norms and placements of a ``--user-dir`` are known to the registries alone.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from norm_plugin.declarations.option import (
    NormDeclaration,
    Option,
    option_helps,
    variant_option,
)

PACKAGE = Path(__file__).resolve().parents[1]
TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str}


@cache
def read_norms() -> dict[str, NormDeclaration]:
    """Return the norms of ``norm_plugin/norms/`` by name, in the order of their registration."""
    classes = dict(_classes(PACKAGE / "norms"))
    norms: dict[str, NormDeclaration] = {}
    for cls in classes.values():
        for (name,), declared in _calls(cls, "register_norm"):
            options = tuple(_options(cls, classes))
            norms[name] = NormDeclaration(name=name, options=options, **declared)
        for (name,), declared in _calls(cls, "register_released"):
            option = variant_option(declared["help"])
            norms[name] = replace(norms[name], options=(*norms[name].options, option))
    return norms


@cache
def read_placements() -> dict[str, str]:
    """Return the equation of each placement of ``norm_plugin/placements/``, by its name."""
    return {
        name: declared["equation"]
        for cls in dict(_classes(PACKAGE / "placements")).values()
        for (name,), declared in _calls(cls, "register_placement")
    }


def _classes(folder: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of a package by name, in the order in which importing it defines them."""
    files = [folder / "__init__.py", *sorted(folder.glob("*.py")), *folder.glob("*/*.py")]
    trees = {
        ".".join(path.relative_to(folder).with_suffix("").parts): ast.parse(path.read_bytes())
        for path in files
    }
    package, seen = f"norm_plugin.{folder.name}.", set[str]()

    def visit(name: str) -> Iterator[tuple[str, ast.ClassDef]]:
        if name not in trees or name in seen:
            return
        seen.add(name)
        for node in trees[name].body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
                yield from visit((node.module or "").removeprefix(package))
            elif isinstance(node, ast.ClassDef):
                yield node.name, node

    for name in trees:
        yield from visit(name)


def _calls(cls: ast.ClassDef, function: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the arguments of each decorator of a class that calls ``function``."""
    for call in cls.decorator_list:
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == function:
            keywords = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
            yield [ast.literal_eval(each) for each in call.args], keywords


def _options(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[Option]:
    """Yield the keyword-only arguments of the constructor of a class, which it may inherit."""
    family = list(_with_bases(cls, classes))
    functions = [node for each in family for node in each.body if isinstance(node, ast.FunctionDef)]
    init = next(function for function in functions if function.name == "__init__")
    doc = next(filter(None, map(ast.get_docstring, family)), "")
    helps = option_helps(inspect.cleandoc(doc))
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults):
        kind, choices = _type(argument.annotation)
        assert default is not None
        value = ast.literal_eval(default)
        yield Option(argument.arg, kind, value, helps[argument.arg], choices)


def _with_bases(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    yield cls
    for base in cls.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _with_bases(classes[base.id], classes)


def _type(annotation: ast.expr | None) -> tuple[type, tuple[str, ...]]:
    """Return the type of an option and its choices: ``float``, ``Literal["on", "off"]``."""
    if isinstance(annotation, ast.Name):
        return TYPES[annotation.id], ()
    assert isinstance(annotation, ast.Subscript)
    choices = ast.literal_eval(annotation.slice)
    return str, choices if isinstance(choices, tuple) else (choices,)
