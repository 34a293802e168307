"""Who may import whom, over every module of the plugin, of the lab and of the papers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN, LAB = "norm_plugin", "norm_lab"
PACKAGES = (PLUGIN, LAB)
# Beside the packages in a checkout: programs, which import them.
OWN_FOLDERS = ("benchmarks", "tools", "data-prep")
PAPERS = "papers"  # what is no part of the product
OWN_COMMANDS = {
    PAPERS,
    *OWN_FOLDERS,
    *(path.stem for name in OWN_FOLDERS for path in (ROOT / name).iterdir()),
}
# What each room of a package may import of the others in it. The modules in its root import any,
# and the lab imports any room of the plugin, never the other way.
MAY_IMPORT: dict[str, dict[str, set[str]]] = {
    PLUGIN: {
        "declarations": set(),
        "norms": {"declarations"},
        "placements": {"declarations", "norms"},
        "kernels": {"declarations", "norms", "placements"},
        "models": {"declarations", "norms", "placements", "kernels", "io"},
        "io": set(),
        "checks": {"norms", "placements", "io"},
        "checkpoints": {"norms", "placements", "kernels", "models", "io"},
    },
    LAB: {},
}
LAB_ROOMS = ("run", "metrics", "config", "engine", "results", "study", "report")
"""Each may import those before it."""
MAY_IMPORT[LAB] = {room: set(LAB_ROOMS[:place]) for place, room in enumerate(LAB_ROOMS)}
# The one import against that order, inside a function: norms are built with their kernels.
AGAINST_THE_ORDER = {("norm_plugin/norms/base/registry.py", "norm_plugin.kernels.set_kernels")}
# What a room may import from outside, next to the standard library; the others are free.
OUTSIDE: dict[str, set[str]] = {
    "declarations": set(),
    "norms": {"torch"},
    "placements": {"torch"},
    "kernels": {"torch", "triton"},
    "io": {"fairseq", "omegaconf"},
    "checks": {"torch"},
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


def complaint(package: str, room: str, imported: str) -> str | None:
    """Why a module in ``room`` of ``package`` may not import ``imported``; None if it may.

    ``room`` is empty for a module in the root of the package.
    """
    top, _, rest = imported.partition(".")
    if top in OWN_COMMANDS:
        return f"{top} is a program, and no part of {package}"
    if (package, top) == (PLUGIN, LAB):
        return "the plugin must not import the lab"
    if not room:
        return None
    if top == package:
        target, rooms = rest.partition(".")[0], MAY_IMPORT[package]
        if target in rooms and target not in rooms[room] | {room}:
            return f"{room} may not import {target}"
        if target not in rooms and room in OUTSIDE:
            return f"{room} must not reach back to the package itself"
    elif room in OUTSIDE and top not in OUTSIDE[room] | sys.stdlib_module_names:
        return f"{room} may import only {', '.join(sorted(OUTSIDE[room])) or 'what Python has'}"
    return None


def complaints(path: Path) -> list[str]:
    package, *rooms = path.relative_to(ROOT).parent.parts
    complained = []
    for name in imported_modules(path.read_text(encoding="utf-8"), ".".join((package, *rooms))):
        if (path.relative_to(ROOT).as_posix(), name) in AGAINST_THE_ORDER:
            continue
        if why := complaint(package, rooms[0] if rooms else "", name):
            complained.append(f"{name}: {why}")
    return complained


def test_every_room_is_known() -> None:
    for package in PACKAGES:
        rooms = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
        assert rooms == set(MAY_IMPORT[package])


def test_imports_go_one_way() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).glob("**/*.py")]
    complained = {path.relative_to(ROOT): complaints(path) for path in files}
    assert {path: why for path, why in complained.items() if why} == {}


def papers_complaint(imported: str) -> str | None:
    """Why a module of the papers may not import ``imported``; None if it may."""
    top, *names = imported.split(".")
    if top in OWN_COMMANDS - {PAPERS}:
        return f"{top} is a program"
    if top in PACKAGES and any(name.startswith("_") for name in names):
        return "the papers use the product by its public names"
    return None


def test_the_papers_use_public_names_and_nothing_uses_the_papers() -> None:
    complained = {
        (path.relative_to(ROOT).as_posix(), name): why
        for path in (ROOT / PAPERS).rglob("*.py")
        for name in imported_modules(
            path.read_text("utf-8"), ".".join(path.relative_to(ROOT).parent.parts)
        )
        if (why := papers_complaint(name))
    }
    assert complained == {}
    assert papers_complaint("norm_lab.report.text._hidden") and papers_complaint("speed_tables.x")
    programs = [path for name in (*OWN_FOLDERS, "examples") for path in (ROOT / name).rglob("*.py")]
    names = {name for path in programs for name in imported_modules(path.read_text("utf-8"), "")}
    assert {name for name in names if name.partition(".")[0] == PAPERS} == set()


def exists(imported: str) -> bool:
    """Whether a module of ours, or a name in one, is imported from an existing file."""
    path = ROOT.joinpath(*imported.split("."))
    return any(
        each.with_name(f"{each.name}.py").is_file() or (each / "__init__.py").is_file()
        for each in (path, path.parent)
    )


def test_modules_that_are_imported_when_needed_exist() -> None:
    missing = {
        (path.name, name)
        for package in PACKAGES
        for path in (ROOT / package).glob("**/*.py")
        for name in imported_modules(
            path.read_text("utf-8"), ".".join(path.relative_to(ROOT).parent.parts)
        )
        if name.partition(".")[0] in PACKAGES and not exists(name)
    }
    assert missing == set()
    assert exists("norm_lab.paths.ROOT") and not exists("norm_lab.no_such_module.name")


@pytest.mark.parametrize(
    ("package", "room", "statement", "allowed"),
    [
        (PLUGIN, "norms", "import torch.nn.functional", True),
        (PLUGIN, "norms", "import numpy", False),
        (PLUGIN, "norms", "from .. import models", False),
        (PLUGIN, "kernels", "def f():\n    from norm_plugin import models", False),
        (PLUGIN, "checkpoints", "from norm_lab.config import configuration", False),
        (PLUGIN, "", "import tools", False),
        (LAB, "metrics", "from norm_lab.config import configuration", False),
        (LAB, "report", "from norm_lab.config import configuration", True),
        (LAB, "report", "from papers import findings", False),
    ],
)
def test_the_check_itself(package: str, room: str, statement: str, allowed: bool) -> None:
    names = imported_modules(statement, f"{package}.{room}".rstrip("."))
    assert all(complaint(package, room, name) is None for name in names) == allowed
