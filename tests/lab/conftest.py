"""Runs with the commands of fake_python.py, and reports without drawings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import FakeRuns
from norm_lab.report.figure import Figure


@pytest.fixture
def runs(tmp_path: Path) -> FakeRuns:
    return FakeRuns(tmp_path)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures blank, since drawing them takes most of the time of a report."""
    monkeypatch.setattr(Figure, "_render", lambda *args, **options: b'<svg width="1" height="1"/>')
