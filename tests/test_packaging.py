"""What pyproject.toml declares: a wheel has the plugin and the lab; its norms need only torch."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import norm_plugin

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = "norm_lab/installed/"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = """
import sys
sys.modules["torch.utils.cpp_extension"] = None  # without torch, no extension is built
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def build(kind: str, checkout: Path, target: Path) -> Path:
    """The wheel that ``kind`` of setuptools builds of a copy of this checkout."""
    for folder in ("norm_plugin", "norm_lab", "configs", "data-prep"):
        unwanted = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / folder, checkout / folder, ignore=unwanted)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    python(BUILD, kind, str(target), here=checkout)
    (wheel,) = target.glob("*.whl")
    return wheel


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


def test_a_wheel_has_the_plugin_the_lab_and_the_files_that_it_reads(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(build("build_wheel", tmp_path / "checkout", tmp_path))
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    inside = {"norm_plugin": "", "norm_lab": "", "configs": INSTALLED, "data-prep": INSTALLED}
    expected = {
        f"{prefix}{path.relative_to(ROOT).as_posix()}"
        for folder, prefix in inside.items()
        for path in (ROOT / folder).rglob("*.*")
        if path.is_file() and path.suffix not in (".so", ".pyc")
    }
    assert set(names) == expected
    info = f"norm_plugin-{norm_plugin.__version__}.dist-info"
    scripts = wheel.read(f"{info}/entry_points.txt").decode()
    assert scripts.split() == ["[console_scripts]", "norm-plugin", "=", "norm_plugin.cli:run"]


TYPED = """
from norm_plugin.norms import build_norm
reveal_type(build_norm("powernorm", 8))
reveal_type(build_norm("powernorm", 8).__call__)
"""


def test_a_type_checker_of_a_user_sees_the_types(tmp_path: Path) -> None:
    """From another folder, where the package is an installed one."""
    (tmp_path / "typed.py").write_text(TYPED)
    # torch's own files would take mypy half a minute; Any is then a Tensor
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    printed = python("from mypy.main import main; main()", "typed.py", here=tmp_path)
    assert re.findall(r'type is "(.*)"', printed) == [
        "norm_plugin.norms.base.contract.Norm",
        "def (x: Any, padding_mask: Any | None =, batch_first: bool =) -> Any",
    ]


IMPORT_USER_DIR = """
import os, site, sys
from argparse import Namespace
# without the checkout of these tests, and where the package is installed from
sys.path[:] = [path for path in sys.path if path and not os.path.isdir(f"{path}/norm_plugin")]
site.addsitedir(sys.argv[1])
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
utils.import_user_module(Namespace(user_dir="my_norms"))
print(sys.modules["norm_plugin"].__file__, "norm_transformer" in ARCH_MODEL_REGISTRY)
import norm_lab
print(norm_lab.__file__)
"""


def test_a_checkout_beside_a_user_dir_does_not_hide_its_editable_installation(
    tmp_path: Path,
) -> None:
    """fairseq puts the folder of the user dir first on Python's path."""
    checkout, user_dir, site = (tmp_path / name for name in ("norm_plugin", "my_norms", "site"))
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text("import norm_plugin\n")
    shutil.unpack_archive(build("build_editable", checkout, tmp_path), site, format="zip")
    printed = python(IMPORT_USER_DIR, str(site), here=tmp_path)
    assert printed.splitlines() == [
        f"{checkout / 'norm_plugin' / '__init__.py'} True",
        f"{checkout / 'norm_lab' / '__init__.py'}",
    ]


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


def declared_projects() -> set[str]:
    """What the package and its extras require, except the package itself."""
    extras = PROJECT["optional-dependencies"].values()
    return {
        project_name(requirement)
        for requirements in (PROJECT["dependencies"], *extras)
        for requirement in requirements
    } - {"norm-plugin"}


def test_the_documentation_gives_a_reason_for_each_dependency() -> None:
    section = ARCHITECTURE.read_text("utf-8").split("\n## Dependencies\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in section.splitlines() if "|" in row]
    reasons = {
        project_name(package.strip()): reason.strip()
        for packages, reason in rows
        for package in packages.split(",")
    }
    assert {name for name in declared_projects() if not reasons.get(name)} == set()
    heads = {"package", "---"}
    assert set(reasons) - declared_projects() - heads == set()


def test_every_module_that_is_imported_is_declared() -> None:
    declared = declared_projects()
    folders = ("norm_plugin", "norm_lab", "data-prep")
    own = {*folders, "prep", *(path.stem for path in (ROOT / "data-prep").rglob("*.py"))}
    projects = packages_distributions()
    imported = set().union(*map(imported_from_outside, folders))
    undeclared = {
        module
        for module in imported - own
        if not declared & {project_name(project) for project in projects.get(module, [module])}
    }
    assert undeclared == set()
