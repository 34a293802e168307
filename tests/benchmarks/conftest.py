"""The data of the benchmarks that train."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A small binarized toy corpus."""
    out = tmp_path_factory.mktemp("data") / "toy"
    sizes = ["--train", "200", "--valid", "10", "--test", "10", "--workers", "1"]
    command = [sys.executable, ROOT / "data-prep" / "toy.py", "--out", out, *sizes]
    subprocess.run(command, check=True, capture_output=True)
    return out / "bin"
