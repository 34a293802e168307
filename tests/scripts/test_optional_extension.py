"""setup.py builds the C++ kernels where it can, and installs all the same where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("norm_plugin")


@pytest.fixture
def checkout(tmp_path):
    """What setup.py needs of a checkout."""
    (tmp_path / PACKAGE / "kernels").mkdir(parents=True)
    for path in ("setup.py", "pyproject.toml", PACKAGE / "__init__.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    kernels = PACKAGE / "kernels" / "cpu"
    shutil.copytree(ROOT / kernels / "csrc", tmp_path / kernels / "csrc")
    shutil.copy(ROOT / kernels / "sources.py", tmp_path / kernels / "sources.py")
    (tmp_path / "bin").mkdir()
    return tmp_path


def build(checkout, **environment):
    """The finished process of building the extension where no tool is on PATH."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "LDSHARED")}
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=checkout,
        env={
            **clean,
            "PATH": str(checkout / "bin"),
            "XDG_CACHE_HOME": str(checkout / "cache"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def assert_survived(result, checkout):
    assert result.returncode == 0, result.stderr
    (output,) = [line for line in result.stderr.splitlines() if line.startswith("norm_plugin: ")]
    assert "no C++ kernels (" in output
    assert output.endswith("will run in plain torch, which is slower and gives the same results")
    assert not list((checkout / PACKAGE).rglob("*.so"))


def test_with_a_compiler_that_fails(checkout):
    broken = checkout / "bin" / "c++"
    broken.write_text("#!/bin/sh\necho 'internal compiler error' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert_survived(build(checkout, CXX=str(broken), CC=str(broken)), checkout)


FAKE_COMPILER = """#!/bin/sh
case "$*" in *" -c "*) echo compiled >>"$0.calls" ;; esac
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && echo built >"$2"
  shift
done
"""


def test_a_second_build_of_the_same_code_takes_the_kernels_of_the_first(checkout):
    compiler = checkout / "bin" / "c++"
    compiler.write_text(FAKE_COMPILER)
    compiler.chmod(0o755)
    calls = checkout / "bin" / "c++.calls"
    fakes = {"CXX": str(compiler), "CC": str(compiler), "LDSHARED": str(compiler)}

    def kernels():
        """What is built, and how many files the compiler compiled."""
        calls.write_text("")
        shutil.rmtree(checkout / "build", ignore_errors=True)
        result = build(checkout, **fakes)
        assert result.returncode == 0, result.stderr
        (built,) = (checkout / PACKAGE).rglob("*.so")
        text = built.read_text()
        built.unlink()
        return text, len(calls.read_text().splitlines())

    first, compiled = kernels()
    assert first == "built\n" and compiled > 1
    assert kernels() == ("built\n", 0)
    with (checkout / PACKAGE / "kernels/cpu/csrc/rows.inc").open("a") as file:
        file.write("// changed\n")
    assert kernels() == ("built\n", compiled)


def test_without_torch_to_build_against(checkout):
    (checkout / "torch.py").write_text("raise ImportError('No module named torch')\n")
    result = build(checkout, PYTHONPATH=str(checkout))
    assert_survived(result, checkout)
    assert "install torch first" in result.stderr
