"""What setup.py declares: a wheel brings the configs, and the norms alone need only torch."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from setuptools.dist import Distribution

from norm_plugin.experiments.spec import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
INSTALLATION = ROOT / "docs" / "installation.md"


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> Distribution:
    from distutils.core import run_setup

    monkeypatch.chdir(ROOT)
    # without torch setup.py declares no extension, which a test would have to build
    monkeypatch.setitem(sys.modules, "torch.utils.cpp_extension", None)
    return run_setup("setup.py", stop_after="init")


def test_every_folder_of_configs_is_packaged_as_the_package_reads_it(
    distribution: Distribution,
) -> None:
    assert {name.partition(".")[0] for name in distribution.packages} == {"norm_plugin"}
    folders = {path.parent.relative_to(ROOT) for path in CONFIGS.rglob("*.yaml")}
    packaged = {
        name: path
        for name, path in distribution.package_dir.items()
        if name in distribution.packages
    }
    assert packaged == {".".join(("norm_plugin", *folder.parts)): str(folder) for folder in folders}


BUILD = """
import sys
sys.modules["torch.utils.cpp_extension"] = None  # without torch, no extension is built
from setuptools import build_meta
build_meta.build_editable(sys.argv[1])
"""
IMPORT_USER_DIR = """
import site, sys
from argparse import Namespace
sys.path[:] = [path for path in sys.path if path not in ("", sys.argv[1])]
site.addsitedir(sys.argv[2])
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
utils.import_user_module(Namespace(user_dir="my_norms"))
print(sys.modules["norm_plugin"].__file__, "norm_transformer" in ARCH_MODEL_REGISTRY)
"""


def test_a_checkout_beside_a_user_dir_does_not_hide_its_editable_installation(
    tmp_path: Path,
) -> None:
    """fairseq puts the folder of the user dir first on Python's path."""
    checkout, user_dir, site = (tmp_path / name for name in ("norm_plugin", "my_norms", "site"))
    for folder in ("norm_plugin", "configs"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text("import norm_plugin\n")
    python(BUILD, str(tmp_path), here=checkout)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, site, format="zip")
    printed = python(IMPORT_USER_DIR, str(ROOT), str(site), here=tmp_path)
    assert printed == f"{checkout / 'norm_plugin' / '__init__.py'} True\n"


def python(code: str, *argv: str, here: Path) -> str:
    """What Python code prints, run in the folder ``here``."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported_from_outside(folder: str) -> set[str]:
    """Top-level modules that the files of ``folder`` import, the standard library's aside."""
    nodes = [
        node
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def project_name(requirement: str) -> str:
    """``fairseq-fixed`` of ``fairseq_fixed>=0.12``."""
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def declared_projects(distribution: Distribution) -> set[str]:
    """What the package and its extras require."""
    extras = distribution.extras_require.values()
    return {
        project_name(requirement)
        for requirements in (distribution.install_requires, *extras)
        for requirement in requirements
    }


def test_the_documentation_gives_a_reason_for_each_dependency(distribution: Distribution) -> None:
    rows = [
        row.split("|")[1:-1] for row in INSTALLATION.read_text("utf-8").splitlines() if "|" in row
    ]
    reasons = {
        project_name(package.strip()): reason.strip()
        for packages, _, reason in rows
        for package in packages.split(",")
    }
    assert {name for name in declared_projects(distribution) if not reasons.get(name)} == set()
    heads = {"package", "---"}
    assert set(reasons) - declared_projects(distribution) - heads == set()


def test_every_module_that_is_imported_is_declared(distribution: Distribution) -> None:
    declared = declared_projects(distribution)
    own = {"norm_plugin", "prep", *(path.stem for path in (ROOT / "data-prep").rglob("*.py"))}
    projects = packages_distributions()
    imported = imported_from_outside("norm_plugin") | imported_from_outside("data-prep")
    undeclared = {
        module
        for module in imported - own
        if not declared & {project_name(project) for project in projects.get(module, [module])}
    }
    assert undeclared == set()
