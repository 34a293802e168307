"""scripts/setup.sh on machines that lack something: one line that says what, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_machine import FakeMachine

NO_VENV_MODULE = "sys.modules['ensurepip'] = None"
NO_HEADERS = "sysconfig.get_paths = lambda: {'include': '/nowhere'}"


def lacks(machine: FakeMachine, **environment: str) -> str:
    """What setup.sh says, which is one line, before anything is made."""
    result = machine.run(**environment)
    assert (result.returncode, result.stdout) == (1, "")
    assert not machine.venv.exists()
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("version", ["3.8.18", "3.14.0"])
def test_no_fitting_python(machine: FakeMachine, version: str) -> None:
    machine.add_python("python3", version)
    line = lacks(machine)
    shown = version.rpartition(".")[0]
    assert line.startswith(
        f"error: no usable Python (python3 is Python {shown}, not 3.11 to 3.13; "
    )
    assert "python3.11 does not run); install what is missing, or set PYTHON" in line


def test_a_python_that_does_not_run(machine: FakeMachine) -> None:
    assert "no usable Python (python9 does not run)" in lacks(machine, PYTHON="python9")


def test_a_python_without_its_parts(machine: FakeMachine) -> None:
    line = lacks(machine, PYTHON="python3", FAKE_SELF=f"{NO_VENV_MODULE}; {NO_HEADERS}")
    assert "python3 has no venv module: on Debian and Ubuntu, apt install python3-venv" in line
    assert "and it has no header files: on Debian and Ubuntu, apt install python3-dev" in line


def test_no_compiler(machine: FakeMachine) -> None:
    (machine.bin / "g++").unlink()
    line = lacks(machine)
    assert line.startswith("error: no working C++ compiler (g++)")
    assert "apt install build-essential" in line


@pytest.mark.parametrize(
    ("fails", "step", "log"),
    [
        ("torch", "installing torch and the build tools", "setup.log"),
        ("libraries.txt", "installing the other libraries and the project", "setup.log"),
        ("fairseq-fixed", "waiting for fairseq", "setup-fairseq.log"),
    ],
)
def test_a_failure_of_pip_shows_the_end_of_its_log(
    machine: FakeMachine, fails: str, step: str, log: str
) -> None:
    said = "a\nERROR: No space left on device"
    result = machine.run(FAKE_PIP_ERROR=said, FAKE_PIP_FAILS=fails)

    assert result.returncode == 1
    *shown, line = result.stderr.splitlines()
    assert "\n".join(shown).endswith(said)
    assert line.startswith(f"error: {step} failed") and str(machine.venv / log) in line
    assert not machine.stamp.exists()


@pytest.mark.parametrize("name", ["treasure", "setup.log", "setup.stamp", "bin/python"])
def test_a_folder_of_something_else_is_not_touched(
    machine: FakeMachine, tmp_path: Path, name: str
) -> None:
    home = tmp_path / "home"
    treasures = [home / name, tmp_path / "home.lock"]  # setup.sh locks the name of its folder
    for treasure in treasures:
        treasure.parent.mkdir(parents=True, exist_ok=True)
        treasure.write_text("gold")

    result = machine.run(NORM_VENV=str(home))

    assert result.returncode == 1
    assert "remove it or set NORM_VENV to another folder" in result.stderr
    assert [treasure.read_text() for treasure in treasures] == ["gold", "gold"]
    assert machine.take_calls() == []


def test_an_environment_from_before_there_was_a_mark_is_known_by_its_stamp(
    machine: FakeMachine,
) -> None:
    assert machine.run().returncode == 0
    (machine.venv / ".made-by-norm-plugin").unlink()
    (machine.root / "setup.py").write_text("# changed\n")
    assert machine.run().returncode == 0
