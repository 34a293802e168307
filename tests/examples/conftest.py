"""The examples, run in this process on made-up data."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch):
    """As python has it for a script: its own folder comes first."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
