"""scripts/slurm: a job starts an experiment's script with srun and the GPUs of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = {"SLURM_JOB_ID": "12345", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4"}


def job(*words, folder=ROOT, **environment):
    return subprocess.run(
        ["bash", str(ROOT / "scripts/slurm/train.sh"), *words],
        env={**os.environ, "SLURM_SUBMIT_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_trains_by_srun_on_all_its_gpus(tmp_path):
    words = ("--dry-run", "--recipe", "powernorm", "--fp16", "--work", str(tmp_path))
    done = job("run_wmt14", *words, **JOB)
    assert done.returncode == 0, done.stderr
    (train,) = [line for line in done.stdout.splitlines() if "fairseq_cli.train" in line]
    assert train.startswith("srun ")
    words = train.split()
    assert words[words.index("--distributed-world-size") + 1] == "8"
    assert words[words.index("--update-freq") + 1] == "16"  # 128 / 8
    assert words[words.index("--distributed-port") + 1] == "32345"
    (generate,) = [line for line in done.stdout.splitlines() if "fairseq_cli.generate" in line]
    assert not generate.startswith("srun")


def test_a_batch_that_the_job_would_change_is_refused():
    done = job("run_iwslt14", "--dry-run", **JOB)
    assert done.returncode == 1
    assert "8 GPUs of 4096 tokens cannot share the recipe's batch of 4096 x 2" in done.stderr


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["run_wmt14"], {}, "error: not in a Slurm job; submit it by sbatch\n"),
        (
            ["run_wmt14"],
            {**JOB, "SLURM_GPUS_ON_NODE": ""},
            "error: this job has no GPUs (SLURM_GPUS_ON_NODE is ''); ask for them, as in sbatch ",
        ),
        (["run_wmt15"], JOB, "error: no scripts/run_wmt15.sh here; submit from the root"),
    ],
)
def test_a_wrong_start_is_one_line(words, environment, message):
    done = job(*words, **{"SLURM_JOB_ID": "", **environment})
    assert done.returncode == 1 and done.stderr.startswith(message)


def test_the_log_of_a_requeued_job_is_appended():
    assert "#SBATCH --open-mode=append\n" in (ROOT / "scripts/slurm/train.sh").read_text()


# In place of fairseq-hydra-train: it prints where each run of the sweep would keep its checkpoints.
HYDRA_TRAIN = """#!{python}
import hydra

@hydra.main(version_base="1.1")
def main(cfg):
    print("folder", cfg.checkpoint.save_dir)

main()
"""


def test_runs_of_a_sweep_that_differ_have_folders_that_differ(tmp_path):
    command = tmp_path / "bin/fairseq-hydra-train"
    command.parent.mkdir()
    command.write_text(HYDRA_TRAIN.format(python=sys.executable))
    command.chmod(0o755)
    overrides = ["norm=layernorm,rmsnorm", "common.seed=3", "model.dropout=0.1,0.3"]
    overrides.append(f"hydra.sweep.dir={tmp_path}/sweep")
    done = subprocess.run(
        ["bash", "scripts/slurm/sweep.sh", "--launcher", "basic", "toy", str(tmp_path), *overrides],
        cwd=ROOT,
        env={**os.environ, "NORM_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    start = f"folder {ROOT}/work/sweeps/toy/"
    folders = [line[len(start) :] for line in done.stdout.splitlines() if line.startswith(start)]
    assert folders == [
        f"{norm}-seed3/model.dropout={dropout}"
        for norm in ("layernorm", "rmsnorm")
        for dropout in (0.1, 0.3)
    ]


def test_another_port_is_no_other_run(checkout):
    checkout._command(checkout.work.parent / "bin/srun", '#!/usr/bin/env bash\nshift\nexec "$@"\n')
    words = ("--work", str(checkout.work), "--srun", "--gpus", "8")
    for port in ("1", "2"):  # a requeued job has another number
        code = f"export SLURM_JOB_ID={port}; scripts/run_wmt14.sh {' '.join(words)}"
        done = checkout.bash("-c", code)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("was done before") == 4
