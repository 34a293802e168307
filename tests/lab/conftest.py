"""Runs with the commands of fake_python.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import FakeRuns


@pytest.fixture
def runs(tmp_path: Path) -> FakeRuns:
    return FakeRuns(tmp_path)
