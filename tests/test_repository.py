"""Habits of every file: commands explain themselves, files are short, nothing is unfinished."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_forked

ROOT = Path(__file__).resolve().parents[1]
COMPRESSED = {".gz"}  # in whose bytes any short word may turn up
SOURCED_ONLY = {"lib.sh"}  # a shell file that is no command of its own
# Put together from parts so that this file does not contain them.
OUTSIDE_FOLDER = "../" + "shared"
LEFTOVER_MARKS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")


def repository_files() -> list[Path]:
    """The text files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in COMPRESSED]


if not (ROOT / ".git").exists():
    pytest.skip("not a git checkout: no list of the project's files", allow_module_level=True)

FILES = repository_files()
SHELL_SCRIPTS = [path for path in FILES if path.suffix == ".sh" or path == ROOT / ".ci/run"]


def below(*folders: str) -> list[Path]:
    return [path for path in FILES if path.relative_to(ROOT).parts[0] in folders]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def is_command(path: Path) -> bool:
    if path.suffix == ".sh":
        return path.name not in SOURCED_ONLY
    return path.suffix == ".py" and 'if __name__ == "__main__"' in text_of(path)


SCRIPTS = [name_of(path) for path in below("scripts") if is_command(path)]
TOOLS = [
    name_of(path)
    for path in below("tools", "data-prep", "benchmarks", "examples")
    if is_command(path)
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(script: str) -> None:
    command = ["bash", script, "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_explains_itself(tool: str) -> None:
    result = run_forked(ROOT / tool, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_command_ends_with_its_reader(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has its lines
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "argv", ["norm-plugin", "--help"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module("norm_plugin", run_name="__main__")
        assert stopped.value.code == 128 + signal.SIGPIPE
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=name_of)
def test_shell_scripts_run_and_stop_at_errors(path: Path) -> None:
    assert os.access(path, os.X_OK), "chmod +x is missing"
    lines = text_of(path).splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines


def test_only_the_continuous_integration_knows_the_folder_beside_the_checkout() -> None:
    naming = [name_of(path) for path in FILES if OUTSIDE_FOLDER in text_of(path)]
    assert naming == [".ci/run"]


def test_no_marks_of_unfinished_work() -> None:
    marked = [
        f"{name_of(path)}: {mark}"
        for path in FILES
        for mark in LEFTOVER_MARKS
        if path.suffix != ".ipynb"  # the text of a picture in it may hold any mark
        and mark in text_of(path)
    ]
    assert marked == []
