"""Machines for the tests of scripts/setup.sh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fake_machine import CHECKOUT, FakeMachine
from printing_python import PYTHON, command


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def ready(machine: FakeMachine) -> FakeMachine:
    """A machine on which setup.sh has finished once."""
    assert machine.run().returncode == 0
    machine.take_calls()
    return machine


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Scripts with a Python that prints its arguments, in a folder with a space."""
    root = tmp_path / "check out"
    shutil.copytree(CHECKOUT / "scripts", root / "scripts")
    command(root / "scripts/setup.sh", "#!/usr/bin/env bash\necho set up\n")
    command(root / ".venv/bin/python", PYTHON)
    return root
