"""scripts/gpu.sh: a part that fails costs no other, and what has passed is not repeated."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu.sh"
PYTHON = """#!/bin/sh
echo "$@" >>"{calls}"
case "$*" in
  *"{fails}"*) echo why it failed; exit 3 ;;
  *torch.cuda.device_count*) echo 0 ;;
  *) echo all is well ;;
esac
"""


@pytest.fixture
def gpu(tmp_path):
    """Runs the script with a Python that fails where its arguments hold ``fails``."""
    python, calls = tmp_path / "venv" / "bin" / "python", tmp_path / "calls"
    python.parent.mkdir(parents=True)

    def run(*flags, fails="nothing fails"):
        calls.write_text("")
        python.write_text(PYTHON.format(calls=calls, fails=fails))
        python.chmod(0o755)
        environment = {**os.environ, "NORM_VENV": str(tmp_path / "venv")}
        command = ["bash", SCRIPT, "--out", tmp_path / "out", *flags]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        return result, calls.read_text()

    return run


def test_a_failed_part_costs_no_other_and_is_repeated(gpu):
    flags = ("--device", "cpu", "--quick")
    result, calls = gpu(*flags, fails="benchmarks/gpu.py")
    assert result.returncode == 1
    assert "    why it failed" in result.stdout and "speed: failed with status 3" in result.stdout
    for name in ("tests", "toy", "toy-run"):
        assert f"{name}: passed in 0 s: all is well" in result.stdout.replace(" 1 s", " 0 s")
    assert "benchmarks/gpu.py --device cpu --quick" in calls
    result, calls = gpu(*flags)
    assert result.returncode == 0
    assert "toy-run: passed before" in result.stdout and "run toy" not in calls
    assert "benchmarks/gpu.py --device cpu --quick" in calls


def test_the_runs_of_multi30k_are_one_sweep_seed_by_seed(gpu, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    result, calls = gpu("--device", "cpu", "--raw", raw, "--parts", "multi30k", "sanitizer")
    assert result.returncode == 0 and "sanitizer: skipped: it checks GPUs only" in result.stdout
    (sweep,) = calls.splitlines()
    assert "sweep multi30k preset=paper seed=1,2,3" in sweep and f"--raw {raw}/multi30k" in sweep
    assert sweep.index("seed=") < sweep.index("placement=post,pre norm=layernorm,powernorm")


def test_without_time_nothing_begins(gpu):
    result, calls = gpu("--device", "cpu", "--quick", "--minutes", "0")
    assert "speed: no time was left" in result.stdout and calls == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "error: torch finds no CUDA device; give --device cpu --quick"),
        (("--device", "tpu"), "error: --device is tpu; it must be cuda or cpu"),
        (("--minutes",), "error: --minutes needs a value; see --help"),
        (("--slow",), "error: unknown option --slow; see --help"),
    ],
)
def test_what_it_refuses(gpu, flags, message):
    result, _ = gpu(*flags)
    assert result.returncode == 2 and result.stderr == f"{message}\n"
