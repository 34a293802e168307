"""scripts/setup.sh on machines that lack something: one line that says what, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fake_machine import FakeMachine

UNREACHABLE = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'"


def without(name: str) -> Callable[[FakeMachine], None]:
    return lambda machine: (machine.bin / name).unlink()


def python(name: str, version: str) -> Callable[[FakeMachine], None]:
    return lambda machine: machine.add_python(name, version)


@pytest.mark.parametrize(
    ("change", "environment", "what", "cure"),
    [
        (
            python("python3", "3.8.18"),
            {},
            "no Python >= 3.11 on PATH (python3 is 3.8.18)",
            "PYTHON",
        ),
        (None, {"PYTHON": "python9"}, "PYTHON=python9 does not run", ">= 3.11 or unset it"),
        (without("g++"), {}, "no working C++ compiler (g++)", "apt install build-essential"),
        (
            None,
            {"FAKE_NO_VENV_MODULE": "1"},
            "python3 has no venv module",
            "apt install python3-venv",
        ),
    ],
)
def test_a_lack_is_one_line_before_anything_is_made(
    machine: FakeMachine,
    change: Callable[[FakeMachine], None] | None,
    environment: dict[str, str],
    what: str,
    cure: str,
) -> None:
    if change is not None:
        change(machine)
    result = machine.run(**environment)

    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {what}")
    assert cure in line
    assert result.stdout == ""
    assert not machine.venv.exists()


@pytest.mark.parametrize(
    ("said_by_pip", "explained"),
    [
        (UNREACHABLE + "\nERROR: No matching distribution found", "cannot reach its package index"),
        ("something new", "see the end of the log"),
    ],
)
def test_a_failure_of_pip_is_one_line_that_names_the_log(
    machine: FakeMachine, said_by_pip: str, explained: str
) -> None:
    result = machine.run(FAKE_PIP_ERROR=said_by_pip)

    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: installing torch and the build tools: ")
    assert explained in line
    assert str(machine.log) in line
    assert said_by_pip in machine.log.read_text()
    assert not machine.stamp.exists()


def test_a_folder_of_something_else_is_not_touched(machine: FakeMachine, tmp_path: Path) -> None:
    treasure = tmp_path / "home/treasure"
    treasure.parent.mkdir()
    treasure.touch()

    result = machine.run(NORM_VENV=str(treasure.parent))

    assert result.returncode == 1
    assert "remove it or set NORM_VENV to another folder" in result.stderr
    assert treasure.exists()
