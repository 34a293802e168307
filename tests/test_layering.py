"""Who may import whom: each layer imports itself and those before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "norm_plugin"
# Each layer may import itself and the ones before it.
LAYERS = ("norms", "placements", "kernels", "models", "checkpoints", "experiments", "analysis")
# What a layer may import from outside, next to the standard library; the others are free.
OUTSIDE = {"norms": {"torch"}, "kernels": {"torch", "triton"}}

NORMS_ALONE = """
import sys
for name in ("fairseq", "fairseq_cli", "hydra", "omegaconf"):
    sys.modules[name] = None  # importing it now raises ImportError
import torch
from norm_plugin.norms import NORM_TYPES, build_norm
for name in NORM_TYPES:
    y = build_norm(name, 8)(torch.ones(2, 3, 8))
    assert y.shape == (2, 3, 8), name
assert "norm_plugin.models" not in sys.modules
print(len(NORM_TYPES))
"""


def test_norms_work_where_fairseq_is_absent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NORMS_ALONE], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 6


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Dotted names that ``source``, a module directly in ``package``, imports anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            # `from norm_plugin import models` names a layer only in its last part.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def complaint(layer: str, imported: str) -> str | None:
    """Why a module of ``layer`` may not import ``imported``; None where it may."""
    top, _, rest = imported.partition(".")
    if top == PACKAGE:
        target = rest.partition(".")[0]
        if target in LAYERS and LAYERS.index(target) > LAYERS.index(layer):
            return f"{layer} stands before {target}"
        if target not in LAYERS and layer in OUTSIDE:
            return f"{layer} must not reach back to the package itself"
    elif layer in OUTSIDE and top not in OUTSIDE[layer] | sys.stdlib_module_names:
        return f"{layer} may import only {', '.join(sorted(OUTSIDE[layer]))}"
    return None


def complaints(path: Path) -> list[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    layer = package.split(".")[1]
    found = imported_modules(path.read_text(encoding="utf-8"), package)
    return [f"{name}: {why}" for name in found if (why := complaint(layer, name))]


def test_every_folder_of_the_package_is_a_known_layer() -> None:
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/*.py")}
    assert "norms" in folders
    assert folders <= set(LAYERS)


@pytest.mark.parametrize(
    "path", sorted((ROOT / PACKAGE).glob("*/**/*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_imports_go_one_way(path: Path) -> None:
    assert complaints(path) == []


@pytest.mark.parametrize(
    ("layer", "statement", "allowed"),
    [
        ("norms", "import torch.nn.functional", True),
        ("norms", "import math", True),
        ("norms", "from norm_plugin.norms.base.registry import register_norm", True),
        ("norms", "from . import base", True),
        ("norms", "import numpy", False),
        ("norms", "from fairseq import utils", False),
        ("norms", "from norm_plugin.kernels import fused", False),
        ("norms", "from .. import models", False),
        ("norms", "import norm_plugin", False),
        ("kernels", "from norm_plugin import norms", True),
        ("kernels", "def f():\n    from norm_plugin import models", False),
        ("models", "from fairseq import utils", True),
        ("models", "from ..kernels import fused", True),
        ("models", "import norm_plugin.checkpoints.average", False),
        ("checkpoints", "from norm_plugin.models import transformer", True),
        ("checkpoints", "from norm_plugin import __version__", True),
        ("checkpoints", "from ..analysis import plots", False),
    ],
)
def test_the_check_itself(layer: str, statement: str, allowed: bool) -> None:
    names = imported_modules(statement, f"{PACKAGE}.{layer}")
    assert all(complaint(layer, name) is None for name in names) == allowed
