"""Every kernel in Triton compiles for a GPU, on any machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no triton: scripts/setup.sh installs it")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("compile_for_gpu.py")
KERNELS = ROOT / "norm_plugin/kernels/triton"


def declared_kernels():
    """``module.function`` of each kernel in the sources."""
    for path in KERNELS.glob("*.py"):
        for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(encoding="utf-8"), re.M):
            yield f"{path.stem}.{name}"


def test_every_kernel_compiles_once_for_any_number_of_rows(tmp_path):
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300
    )

    assert result.returncode == 0, result.stderr[-2000:]
    lines = [line.split("|") for line in result.stdout.splitlines()]
    assert {name for name, *_ in lines} == set(declared_kernels())
    # no number of rows makes another variant, and rows of 16 bytes' multiples are read by 16
    of_rows = [line for line in lines if line[3] != "no rows"]
    assert [line for line in of_rows if line[2:] != ["num_rows", "wide"]] == []
    # nor does any other number: of elements, or of programs whose sums are added
    flat = {
        (name.partition(".")[0], numbers) for name, _, numbers, wide in lines if wide == "no rows"
    }
    assert flat == {("batch_statistics", "programs"), ("tiles", "programs")}
