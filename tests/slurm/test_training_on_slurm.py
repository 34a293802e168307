"""scripts/slurm/train.sh as a job on two nodes of a real Slurm, one worker on each, with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder to submit from: its script starts the toy experiment without scripts/setup.sh."""
    script = tmp_path / "checkout" / "scripts" / "run_toy.sh"
    script.parent.mkdir(parents=True)
    command = f"exec {sys.executable} -m norm_plugin.experiments run toy"
    script.write_text(f'#!/usr/bin/env bash\nexport PYTHONPATH={ROOT}\n{command} "$@"\n')
    script.chmod(0o755)
    return tmp_path / "checkout"


def test_a_job_trains_on_two_nodes(slurm, checkout, tmp_path):
    words = ["run_toy", "--work", str(tmp_path / "work"), "--smoke", "--change-batch"]
    words += ["optimization.max_update=6", "checkpoint.save_interval_updates=2"]
    job = ["--nodes", "2", "--gpus-per-node", "0", "--cpus-per-task", "1", "--wait"]
    done = subprocess.run(
        ["sbatch", *job, str(ROOT / "scripts/slurm/train.sh"), "--cpu", *words],
        cwd=checkout,
        env={**os.environ, "SLURM_CONF": str(slurm), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    printed = "".join(path.read_text() for path in checkout.glob("slurm-*.txt"))
    assert done.returncode == 0, done.stderr + printed
    (run,) = tmp_path.glob("work/runs/toy_smoke/*")
    log = (run / "logs" / "train.log").read_text()
    for rank in (0, 1):
        assert f"as rank {rank}" in log
    assert "training on 2 devices" in log
    (result,) = tmp_path.glob("work/results/toy_smoke/*.json")
    assert result.name.endswith("-2workers-batch-seed1.json")
    assert json.loads(result.read_text())["training"]["updates"] == 6
