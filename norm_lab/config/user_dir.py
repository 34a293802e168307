"""The files of a user dir that a run depends on; if they change, it is another run.

Other files of the folder, such as that of a second norm, may change. A run depends on

- the files that define the norms, placements, models, tasks and other components that its flags
  name, and the files of the user dir that those import or name in turn;
- the imported files with side effects, such as replacing a function of another package, since
  these may affect any run.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import norm_plugin
from norm_lab.config.spec import Sources

DIGITS = 16  # of a SHA-256, in hexadecimal


def sources_in_use(user_dir: Path | None, flags: Sequence[str]) -> Sources:
    """Return the digests of the files of ``user_dir`` that a training with ``flags`` depends on."""
    if user_dir is None or user_dir.name == norm_plugin.__name__:
        return {}
    folder = Path(os.path.abspath(user_dir))
    names = {part for flag in flags for part in (flag, flag.partition("=")[2])}
    used = {path for path in _imported_files(folder) if _has_side_effects(path)}
    used |= _defining(names, folder)
    waiting = list(used)
    while waiting:
        tree = ast.parse(waiting[-1].read_bytes())
        words = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        new = {*_imports(tree, waiting.pop(), folder), *_defining(words, folder)}
        waiting += new - used
        used |= new
    return {
        str(path.relative_to(folder.parent)): hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
        for path in sorted(used)
    }


def _defining(names: Iterable[str], folder: Path) -> set[Path]:
    """Return the files in ``folder`` that define a component registered under one of ``names``."""
    modules = (sys.modules.get(each.__module__) for each in _components(names))
    paths = {Path(name) for module in modules if (name := getattr(module, "__file__", None))}
    return {path for path in paths if path.is_relative_to(folder)}


def _components(names: Iterable[str]) -> Iterator[Any]:
    """Yield the classes and functions that are registered under one of ``names``."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    from norm_plugin.norms import NORM_TYPES, norm_spec
    from norm_plugin.placements import PLACEMENTS, placement_class

    registries = [ARCH_MODEL_REGISTRY, ARCH_CONFIG_REGISTRY, TASK_REGISTRY]
    registries += [each["registry"] for each in REGISTRIES.values()]
    for name in names:
        yield from (registry[name] for registry in registries if name in registry)
        if name in NORM_TYPES:
            yield norm_spec(name).cls
        if name in PLACEMENTS:
            yield placement_class(name)


def _imported_files(folder: Path) -> list[Path]:
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    start = f"{folder}{os.sep}"
    return [Path(name) for name in names if name and name.startswith(start)]


def _has_side_effects(path: Path) -> bool:
    """Return whether importing a file does more than import others and define names."""
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Assign) and all(map(_is_name, statement.targets)):
            continue
        if not isinstance(statement, defines):
            return True
    return False


def _is_name(target: ast.expr) -> bool:
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(element, ast.Name) for element in elements)


def _imports(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files in ``folder`` that the file ``path`` imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.parent.relative_to(folder.parent).parts
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            # a name is a submodule, or is defined in the module itself
            modules = [f"{module}.{alias.name}" for alias in node.names]
            names = [each if _module_file(each, folder) else module for each in modules]
        else:
            continue
        yield from filter(None, (_module_file(name, folder) for name in names))


def _module_file(name: str, folder: Path) -> Path | None:
    """Return the file of a module of the user dir, given its full name, or None."""
    stem = folder.parent.joinpath(*name.split("."))
    if not stem.is_relative_to(folder):
        return None
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in files if path.is_file()), None)
