"""The data of the benchmarks that train."""

from __future__ import annotations

import pytest
from forked import ROOT, run_forked


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A small binarized toy corpus."""
    out = tmp_path_factory.mktemp("data") / "toy"
    sizes = ["--train", "200", "--valid", "10", "--test", "10", "--workers", "1"]
    result = run_forked(ROOT / "data-prep" / "toy.py", "--out", out, *sizes)
    assert result.returncode == 0, result.stderr
    return out / "bin"


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    """The loggers are those of all tests: no benchmark makes them quiet."""
    from measuring import command

    monkeypatch.setattr(command, "quiet", lambda: None)


@pytest.fixture
def cpu_kernels():
    """Skips a test where the kernels of the CPU are not built."""
    from norm_plugin.kernels import resolve

    try:
        resolve("cpu")
    except ValueError as error:
        pytest.skip(str(error))
