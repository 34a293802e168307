"""scripts/setup.sh on machines that are new, ready or interrupted, and twice at once."""

from __future__ import annotations

import fcntl
import signal
from pathlib import Path

import pytest

from fake_machine import CSRC, FakeMachine


def kinds(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls]


# --- the ordinary way


def test_first_run_installs_everything_in_order(machine: FakeMachine) -> None:
    result = machine.run(CUDA_HOME="/opt/cuda")

    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert all(line.startswith("setup: ") for line in lines)
    assert len(lines) == 6  # the environment, three installations, waiting, ready
    calls = machine.take_calls()
    # fairseq is built without its CUDA parts
    assert all(call.endswith(" CUDA_HOME=none") for call in calls[1:])
    calls = [call.removesuffix(" CUDA_HOME=none") for call in calls]
    assert kinds(calls) == ["venv", "pip", "pip", "pip"]
    lock = machine.root / "requirements.lock"
    assert f"-c {lock} torch " in calls[1]
    # fairseq is built beside the others
    fairseq, others = sorted(calls[2:], key=lambda call: "fairseq-fixed" not in call)
    assert fairseq.endswith(f" --no-deps -c {lock} fairseq-fixed")
    libraries = machine.venv / "libraries.txt"
    assert others.endswith(f" --no-deps -r {libraries} -e {machine.root}")
    base, _, tests = lock.read_text().partition("# For tests only")
    installed = libraries.read_text()
    assert "\ntorch==" in installed and "fairseq-fixed==" not in installed
    assert set(installed.splitlines()) < set(base.splitlines())
    assert "\npytest==" in tests and "pytest" not in installed
    assert machine.stamp.is_file()


def test_nothing_to_do_is_silent_and_needs_nothing(ready: FakeMachine) -> None:
    (ready.bin / "g++").unlink()
    (ready.bin / "python3").unlink()
    result = ready.run()

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert ready.take_calls() == []


def test_what_only_the_tests_need_is_installed_when_they_ask_for_it(ready: FakeMachine) -> None:
    cpu = {"FAKE_CPU_TORCH": "1"}  # a torch that brings no triton
    assert ready.run(**cpu).returncode == 0 and ready.take_calls() == []
    assert ready.run("--tests", **cpu).returncode == 0
    assert "\npytest==" in (ready.venv / "libraries.txt").read_text()
    (call,) = [call for call in ready.take_calls() if "requirements-cpu.lock" in call]
    assert f" -e {ready.root} -r {ready.root}/requirements-cpu.lock" in call
    for flags in ([], ["--tests"]):
        assert ready.run(*flags, **cpu).returncode == 0 and ready.take_calls() == []


@pytest.mark.parametrize("name", ["requirements.lock", "setup.py", CSRC])
def test_a_changed_file_installs_again_into_the_same_environment(
    ready: FakeMachine, name: str
) -> None:
    with (ready.root / name).open("a") as file:
        file.write("# changed\n")

    assert ready.run().returncode == 0
    assert kinds(ready.take_calls()) == ["pip"] * 3


def test_a_moved_checkout_gets_a_new_environment(ready: FakeMachine, tmp_path: Path) -> None:
    ready.root.rename(tmp_path / "elsewhere")
    ready.root = tmp_path / "elsewhere"

    assert ready.run().returncode == 0
    assert ready.take_calls()[0] == f"venv {tmp_path}/elsewhere/.venv"


def test_norm_venv_counts_from_the_root_of_the_checkout(machine: FakeMachine) -> None:
    assert machine.run(NORM_VENV="env/norms").returncode == 0
    assert machine.take_calls()[0] == f"venv {machine.root}/env/norms"


@pytest.mark.parametrize("forbidden", ["", "1"])
def test_pip_compiles_where_python_may_not_store_what_it_compiles(
    machine: FakeMachine, forbidden: str
) -> None:
    assert machine.run(PYTHONDONTWRITEBYTECODE=forbidden).returncode == 0
    pips = [call for call in machine.take_calls() if call.startswith("pip")]
    assert [" --no-compile " in call for call in pips] == [not forbidden] * 3


# --- which Python


@pytest.mark.parametrize(
    ("unfit", "name", "version"),
    [("3.9.2", "python3.12", "3.12.4"), ("3.14.1", "python3.13", "3.13.0")],
)
def test_takes_a_named_python_where_python3_is_too_old_or_too_new(
    machine: FakeMachine, unfit: str, name: str, version: str
) -> None:
    machine.add_python("python3", unfit)
    machine.add_python(name, version)
    result = machine.run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].split()[-1] == version


# --- a fairseq that pip kept from a build with another torch


def test_a_fairseq_that_does_not_load_is_built_again(machine: FakeMachine) -> None:
    result = machine.run(FAKE_LOADS_AFTER="--no-cache-dir")

    assert (result.returncode, result.stderr) == (0, "")
    assert "--force-reinstall --no-cache-dir" in machine.take_calls()[-1]
    assert machine.stamp.is_file()


# --- interrupted, and twice at once


def test_a_killed_run_is_finished_by_the_next(machine: FakeMachine) -> None:
    killed = machine.run(FAKE_PIP_KILLS_SETUP="1")
    assert killed.returncode == -signal.SIGKILL
    assert kinds(machine.take_calls()) == ["venv", "pip"]

    assert machine.run().returncode == 0
    assert kinds(machine.take_calls()) == ["pip"] * 3
    assert machine.stamp.is_file()


def test_a_half_made_environment_is_made_anew(ready: FakeMachine) -> None:
    (ready.venv / "bin/activate").unlink()
    (ready.venv / "leftover").touch()
    ready.stamp.unlink()

    assert ready.run().returncode == 0
    assert kinds(ready.take_calls()) == ["venv"] + ["pip"] * 3
    assert not (ready.venv / "leftover").exists()


def test_packages_that_a_killed_pip_left_half_are_forgotten(ready: FakeMachine) -> None:
    site = ready.venv / "lib/python3.11/site-packages"
    whole, half, old = site / "a-1.dist-info", site / "b-1.dist-info", site / "~c"
    for folder in (whole, half, old):
        folder.mkdir(parents=True)
    (whole / "INSTALLER").touch()
    ready.stamp.unlink()

    assert ready.run().returncode == 0
    assert [path.exists() for path in (whole, half, old)] == [True, False, False]


@pytest.mark.parametrize("first_finishes", [True, False])
def test_the_second_of_two_waits_for_the_first(ready: FakeMachine, first_finishes: bool) -> None:
    stamp = ready.stamp.read_text()
    ready.stamp.unlink()
    with (ready.root / ".venv.lock").open("w") as lock:  # as the first run holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = ready.start()
        assert second.stdout is not None
        assert "another setup of this folder is running" in second.stdout.readline()
        assert ready.take_calls() == []
        if first_finishes:
            ready.stamp.write_text(stamp)
    out, err = second.communicate(timeout=60)

    assert (second.returncode, err) == (0, "")
    assert kinds(ready.take_calls()) == ([] if first_finishes else ["pip"] * 3)
    assert (out == "") == first_finishes
