"""A sweep as jobs of a real Slurm with two nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fake_python
from fake_runs import FakeRuns

# A job is a new process, which would start the commands of a run with the real Python.
SITECUSTOMIZE = f"""
from norm_lab import paths

paths.PYTHON[:] = {[sys.executable, "-S", "-E", fake_python.__file__]}
"""


@pytest.fixture
def runs(tmp_path: Path) -> FakeRuns:
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return FakeRuns(tmp_path)


def test_a_sweep_of_four_runs_one_of_which_diverges(slurm, runs):
    pytest.importorskip("submitit", reason="the extra 'slurm' is not installed")
    argv = ("sweep", "toy", "seed=1,2,3,4", "--launcher", "submitit_slurm")
    result = runs.command(
        *argv,
        *("--work", str(runs.work), "hydra.launcher.timeout_min=10"),
        SLURM_CONF=str(slurm),
        PYTHONPATH=str(runs.folder),
        FAKE_TRAINING_OF_SEED=json.dumps({"2": "diverges"}),
    )
    assert result.returncode == 0, result.stderr
    assert "3 done, 1 diverged of 4" in result.stdout
    results = [json.loads(file.read_text()) for file in runs.work.glob("results/toy/*.json")]
    assert sorted(result["seed"] for result in results) == [1, 2, 3, 4]
    assert [result["seed"] for result in results if "reason" in result] == [2]
