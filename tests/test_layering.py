"""Who may import whom, over every module of the package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "norm_plugin"
# Beside the package in a checkout, and no part of what pip installs.
OWN_FOLDERS = ("benchmarks", "tools", "data-prep")
OWN_COMMANDS = {
    *OWN_FOLDERS,
    *(path.stem for name in OWN_FOLDERS for path in (ROOT / name).iterdir()),
}
FAIRSEQ_SIDE = {"norms", "placements", "kernels", "models", "commands", "checkpoints"}
# What each folder of the package may import of the others. The modules in its root import any.
MAY_IMPORT = {
    "norms": set(),
    "placements": {"norms"},
    "kernels": {"norms", "placements"},
    "models": {"norms", "placements", "kernels"},
    "commands": {"norms", "placements"},
    "checkpoints": {"norms", "placements", "kernels", "models", "commands"},
    "experiments": FAIRSEQ_SIDE,
    "analysis": FAIRSEQ_SIDE | {"experiments"},
}
# What a folder may import from outside, next to the standard library; the others are free.
OUTSIDE = {
    "norms": {"torch"},
    "placements": {"torch"},
    "kernels": {"torch", "triton"},
    "commands": {"torch"},
}


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Dotted names that ``source``, a module directly in ``package``, imports anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            # `from norm_plugin import models` names a folder only in its last part.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def complaint(folder: str, imported: str) -> str | None:
    """Why a module of ``folder`` may not import ``imported``; None where it may."""
    top, _, rest = imported.partition(".")
    if top in OWN_COMMANDS:
        return f"{top} is not installed with the package"
    if not folder:
        return None
    if top == PACKAGE:
        target = rest.partition(".")[0]
        if target in MAY_IMPORT and target not in MAY_IMPORT[folder] | {folder}:
            return f"{folder} may not import {target}"
        if target not in MAY_IMPORT and folder in OUTSIDE:
            return f"{folder} must not reach back to the package itself"
    elif folder in OUTSIDE and top not in OUTSIDE[folder] | sys.stdlib_module_names:
        return f"{folder} may import only {', '.join(sorted(OUTSIDE[folder]))}"
    return None


def complaints(path: Path) -> list[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    folder = package.partition(".")[2].partition(".")[0]
    complained = []
    for name in imported_modules(path.read_text(encoding="utf-8"), package):
        if why := complaint(folder, name):
            complained.append(f"{name}: {why}")
    return complained


def test_every_folder_of_the_package_is_known() -> None:
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/*.py")}
    assert "norms" in folders
    assert folders <= set(MAY_IMPORT)


def test_imports_go_one_way() -> None:
    files = (ROOT / PACKAGE).glob("**/*.py")
    complained = {path.relative_to(ROOT): complaints(path) for path in files}
    assert {path: why for path, why in complained.items() if why} == {}


@pytest.mark.parametrize(
    ("folder", "statement", "allowed"),
    [
        ("norms", "import torch.nn.functional", True),
        ("norms", "from norm_plugin.norms.base.registry import register_norm", True),
        ("norms", "import numpy", False),
        ("norms", "from .. import models", False),
        ("placements", "from norm_plugin import kernels", False),
        ("kernels", "def f():\n    from norm_plugin import models", False),
        ("models", "from norm_plugin.commands.command_line import CommandError", False),
        ("", "from norm_plugin.experiments import recipes", True),
        ("", "import tools", False),
        ("commands", "from declared_tables import norms_table", False),
    ],
)
def test_the_check_itself(folder: str, statement: str, allowed: bool) -> None:
    names = imported_modules(statement, f"{PACKAGE}.{folder}")
    assert all(complaint(folder, name) is None for name in names) == allowed
