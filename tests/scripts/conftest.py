"""Machines for the tests of scripts/setup.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_machine import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def ready(machine: FakeMachine) -> FakeMachine:
    """A machine on which setup.sh has finished once."""
    assert machine.run().returncode == 0
    machine.take_calls()
    return machine
