"""scripts/slurm/train.sh as a job on two nodes of a real Slurm, one worker on each, with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import norm_plugin.models  # noqa: F401  lets torch's safe loader read stored flags

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 6
SAVED, STOPPED = 2, 3
# It starts the toy experiment without scripts/setup.sh.
SCRIPT = f"""#!/usr/bin/env bash
export PYTHONPATH={ROOT}
exec {sys.executable} -m norm_plugin run toy "$@"
"""
# With REQUEUED in the environment, the job is requeued when it has come to the update STOPPED.
USER_DIR = f"""
import os
import signal
import subprocess

import norm_plugin
from fairseq.trainer import Trainer

def train_step(trainer, *args, train_step=Trainer.train_step, **kwargs):
    if trainer.get_num_updates() == {STOPPED} and trainer.data_parallel_rank == 0:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        signal.pause()
    return train_step(trainer, *args, **kwargs)

if "REQUEUED" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
    Trainer.train_step = train_step
"""


def submit(slurm: Path, folder: Path, **environment: str) -> Path:
    """Train in a job on two nodes, to its end; returns the folder of the run."""
    checkout, user_dir = folder / "checkout", folder / "requeued_norms"
    (checkout / "scripts").mkdir(parents=True)
    user_dir.mkdir()
    (user_dir / "__init__.py").write_text(USER_DIR)
    script = checkout / "scripts" / "run_toy.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    argv = ["run_toy", "--work", str(folder / "work"), "--smoke", "--scale-batch-size"]
    argv += ["--user-dir", str(user_dir), f"optimization.max_update={UPDATES}"]
    argv += [f"checkpoint.save_interval_updates={SAVED}"]
    job = ["--nodes", "2", "--gpus-per-node", "0", "--cpus-per-task", "1", "--wait"]
    result = subprocess.run(
        ["sbatch", *job, str(ROOT / "scripts/slurm/train.sh"), "--cpu", *argv],
        cwd=checkout,
        env={**os.environ, "SLURM_CONF": str(slurm), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    printed = "".join(path.read_text() for path in checkout.glob("slurm-*.txt"))
    assert result.returncode == 0, result.stderr + printed
    (run,) = folder.glob("work/runs/toy_smoke/*")
    return run


@pytest.fixture(scope="module")
def undisturbed(slurm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing stopped."""
    return submit(slurm, tmp_path_factory.mktemp("undisturbed"))


def test_a_job_trains_on_two_nodes(undisturbed: Path) -> None:
    log = (undisturbed / "logs" / "train.log").read_text()
    for rank in (0, 1):
        assert f"as rank {rank}" in log
    assert "training on 2 devices" in log
    (result,) = undisturbed.parents[2].glob("results/toy_smoke/*.json")
    assert "-workers-2-" in result.name
    assert json.loads(result.read_text())["training"]["updates"] == UPDATES


def test_a_job_that_is_requeued_in_the_middle_of_an_epoch_ends_with_the_same_weights(
    slurm: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = submit(slurm, tmp_path, REQUEUED="1")
    log = (run / "logs" / "train.log").read_text()
    assert f"checkpoint_last.pt (epoch 1 @ {SAVED} updates)" in log
    # Of the second start: what a stopped one has printed may not have come from the other node.
    assert "as rank 1" in log
    weights, expected = (
        torch.load(folder / "checkpoints" / "checkpoint_last.pt", weights_only=True)
        for folder in (run, undisturbed)
    )
    for part in ("model", "last_optimizer_state"):
        torch.testing.assert_close(weights[part], expected[part], rtol=0, atol=0)
