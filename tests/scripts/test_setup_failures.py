"""scripts/setup.sh on machines that lack something: one line that says what, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fake_machine import FakeMachine

UNREACHABLE = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'"


def failing(name: str) -> Callable[[FakeMachine], None]:
    """A command that ends with status 1."""
    return lambda machine: machine.add_command(name, "#!/usr/bin/env bash\nexit 1\n")


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
        (without("python3"), {}, "no Python >= 3.11 on PATH (none at all)", "set PYTHON"),
        (
            python("old", "3.10.1"),
            {"PYTHON": "old"},
            "PYTHON=old is Python 3.10.1",
            ">= 3.11 or unset it",
        ),
        (None, {"PYTHON": "python9"}, "PYTHON=python9 does not run", ">= 3.11 or unset it"),
        (without("g++"), {}, "no working C++ compiler (g++)", "apt install build-essential"),
        (
            failing("clang-99"),
            {"CXX": "clang-99"},
            "no working C++ compiler (clang-99)",
            "set CXX",
        ),
        (
            None,
            {"FAKE_NO_VENV_MODULE": "1"},
            "python3 has no venv module",
            "apt install python3-venv",
        ),
        (None, {"FAKE_NO_HEADERS": "1"}, "python3 has no header files", "apt install python3-dev"),
        (without("flock"), {}, "no flock command", "install util-linux"),
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
    done = machine.run(**environment)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {what}")
    assert cure in line
    assert done.stdout == ""
    assert not machine.venv.exists()


@pytest.mark.parametrize(
    ("said_by_pip", "explained"),
    [
        (UNREACHABLE + "\nERROR: No matching distribution found", "cannot reach its package index"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: Failed building wheel for fairseq-fixed", "the build failed"),
        ("ERROR: No matching distribution found for torch", "set PYTHON to Python 3.11 to 3.13"),
        ("something new", "see the end of the log"),
    ],
)
def test_a_failure_of_pip_is_one_line_that_names_the_log(
    machine: FakeMachine, said_by_pip: str, explained: str
) -> None:
    done = machine.run(FAKE_PIP_ERROR=said_by_pip)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: installing torch and the build tools: ")
    assert explained in line
    assert str(machine.log) in line
    assert said_by_pip in machine.log.read_text()
    assert not machine.stamp.exists()


def test_a_failure_of_fairseq_beside_the_others_names_its_own_log(machine: FakeMachine) -> None:
    error = "ERROR: Failed building wheel for fairseq-fixed"
    done = machine.run(FAKE_PIP_ERROR=error, FAKE_PIP_FAILS="fairseq-fixed")

    assert done.returncode == 1
    log = machine.venv / "setup-fairseq.log"
    assert done.stderr == f"error: installing fairseq: the build failed; see the log (log: {log})\n"
    assert error in log.read_text()
    assert not machine.stamp.exists()


def test_a_failure_of_venv_is_one_line_and_the_next_run_starts_over(machine: FakeMachine) -> None:
    done = machine.run(FAKE_VENV_ERROR="Error: Command 'ensurepip' died")

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: python3 -m venv failed (Error: Command 'ensurepip' died)")
    assert machine.run().returncode == 0


def test_a_folder_of_something_else_is_not_touched(machine: FakeMachine, tmp_path: Path) -> None:
    treasure = tmp_path / "home/treasure"
    treasure.parent.mkdir()
    treasure.touch()

    done = machine.run(NORM_VENV=str(treasure.parent))

    assert done.returncode == 1
    assert "remove it or set NORM_VENV to another folder" in done.stderr
    assert treasure.exists()


def test_an_unknown_argument_is_an_error(machine: FakeMachine) -> None:
    done = machine.run("--fast")
    assert (done.returncode, machine.take_calls()) == (1, [])
    assert done.stderr == "error: unknown argument --fast; see scripts/setup.sh --help\n"
