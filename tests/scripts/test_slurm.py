"""scripts/slurm: a job starts an experiment's script with srun and the GPUs of the job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fake_runs import spec_of
from norm_lab.engine.cpu_worker import ADDRESS, RANK, worker_flags
from norm_lab.engine.stages import run_stages
from norm_plugin.cli import main
from norm_plugin.io.command_line import CommandError

ROOT = Path(__file__).resolve().parents[2]
JOB = {"SLURM_JOB_ID": "12345", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4"}


def job(*argv, folder=ROOT, **environment):
    return subprocess.run(
        ["bash", str(ROOT / "scripts/slurm/train.sh"), *argv],
        env={**os.environ, "SLURM_SUBMIT_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def printed(checkout, monkeypatch, capsys):
    """What a job prints: its script starts Python with a command line, which is run here."""

    def run(*argv, **environment):
        result = job(*argv, folder=checkout, **environment)
        assert result.returncode == 0, result.stderr
        _, path, *python_argv = result.stdout.splitlines()
        assert path.split(":")[0] == str(checkout)
        assert python_argv[:3] == ["-P", "-m", "norm_plugin"]
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(python_argv[3:]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.usefixtures("warm")
def test_a_job_trains_by_srun_on_all_its_gpus(printed, tmp_path):
    argv = ("--dry-run", "--verbose", "--recipe", "powernorm", "--fp16", "--work", str(tmp_path))
    lines = printed("run_wmt14", *argv, **JOB)
    (train,) = [line for line in lines if "fairseq_cli.train" in line]
    assert train.startswith("srun ")
    argv = train.split()
    assert argv[argv.index("--distributed-world-size") + 1] == "8"
    assert argv[argv.index("--update-freq") + 1] == "16"  # 128 / 8
    assert argv[argv.index("--distributed-port") + 1] == "32345"
    (finish,) = [line for line in lines if "norm_plugin finish" in line]
    assert not finish.startswith("srun")


@pytest.mark.usefixtures("warm")
def test_a_job_trains_on_cpus_with_a_worker_for_each_task(printed, tmp_path):
    cpu = {"SLURM_JOB_ID": "12345", "SLURM_NTASKS": "2"}
    argv = ("--preset", "cpu", "--dry-run", "--verbose", "--work", str(tmp_path))
    lines = printed("--cpu", "run_multi30k", *argv, "--scale-batch-size", **cpu)
    (train,) = [line for line in lines if line.startswith("srun ")]
    argv = train.split()
    assert "norm_plugin worker" in train and "--cpu" in argv
    assert argv[argv.index("--distributed-world-size") + 1] == "2"
    assert argv[argv.index("--distributed-backend") + 1] == "gloo"


def test_a_worker_that_cannot_find_the_others_says_so():
    with pytest.raises(CommandError, match="is not set; start the workers by srun"):
        worker_flags(["--distributed-port", "1"], {})


def test_a_worker_takes_its_rank_from_slurm():
    given = ["DATA", "--distributed-port", "20001"]
    assert worker_flags(given, {RANK: "1", ADDRESS: "10.0.0.1"}) == [
        *given,
        *("--distributed-rank", "1", "--distributed-no-spawn"),
        *("--distributed-init-method", "tcp://10.0.0.1:20001"),
    ]


@pytest.mark.parametrize(
    ("argv", "environment", "message"),
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
def test_a_wrong_start_is_one_line(argv, environment, message):
    result = job(*argv, **{"SLURM_JOB_ID": "", **environment})
    assert result.returncode == 1 and result.stderr.startswith(message)


def test_another_port_is_no_other_run(monkeypatch):
    argv = ["wmt14", "recipe=powernorm", "--srun", "--gpus", "8", "--work", "w"]
    commands, keys = [], []
    for number in ("1", "2"):  # a requeued job has another number
        monkeypatch.setenv("SLURM_JOB_ID", number)
        training = run_stages(spec_of(*argv))[0]
        commands.append(training.command)
        keys.append(training.key)
    assert commands[0] != commands[1] and keys[0] == keys[1]


def test_the_log_of_a_requeued_job_is_appended():
    assert "#SBATCH --open-mode=append\n" in (ROOT / "scripts/slurm/train.sh").read_text()
