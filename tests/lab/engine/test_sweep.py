"""Sweeps: grids in hydra's syntax, several runs at once, kills, and runs that fail."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
import types
from threading import Barrier

import pytest

from fake_runs import FakeRuns, composed, spec_of, value
from norm_lab.config import compose, options
from norm_lab.config.studies import read_study_file, study_names, study_path
from norm_lab.engine.grid import state_since
from norm_lab.engine.jobs import count_jobs, gpus_of, run_locally
from norm_lab.engine.overview import seconds_left, summary
from norm_lab.engine.slurm import SlurmJob, slurm_options
from norm_lab.engine.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    WAITING,
    Status,
    write_status,
)
from norm_lab.paths import CONFIGS
from norm_plugin.cli import main
from norm_plugin.io.command_line import CommandError

SWEEP = ("sweep", "toy", "norm=layernorm,powernorm", "seed=1,2", "--jobs", "2")


def request(*argv):
    return options.request_of(options.parse(options.sweep_parser(), argv))


def grid(*argv):
    return [spec.folder.name for spec in composed(*argv)]


def test_a_grid_is_the_product_of_its_values():
    names = grid("toy", "norm=layernorm,rmsnorm", "placement=pre,post", "seed=1,2")
    assert names == [
        f"{norm}{placement}-seed{seed}"
        for norm in ("layernorm", "rmsnorm")
        for placement in ("", "-post")  # pre is the recipe's
        for seed in (1, 2)
    ]


def test_the_first_key_changes_last():
    names = grid("toy", "seed=1,2", "norm=layernorm,rmsnorm")
    assert [name[-1] for name in names] == ["1", "1", "2", "2"]


def test_a_value_that_is_the_default_is_no_other_run():
    names = grid("toy", "norm=powernorm", "norm_variant=paper,released")
    assert names == ["powernorm-seed1", "powernorm-released-seed1"]
    names = grid("toy", "norm=powernorm", "placement=pre,pre")
    assert names == ["powernorm-seed1"]


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(CommandError, match=r"norm_record=25: its result would be .* give the two"):
        grid("toy", "model.norm_record=10,25")


@pytest.fixture
def each_flag_once(monkeypatch):
    """Check a training, which takes a second, only if its flags have other names."""
    check, seen = compose.check_training, set()

    def check_once(flags):
        names = tuple(flag for flag in flags if flag.startswith("--"))
        if names not in seen:
            seen.add(names)
            check(flags)

    monkeypatch.setattr(compose, "check_training", check_once)


@pytest.mark.usefixtures("each_flag_once")
@pytest.mark.parametrize("study", study_names())
def test_the_runs_of_every_study_are_those_of_its_file(study):
    """They are different, whole seeds come first, and their number is the one that it names."""
    names = grid(study, "--dry-run", "--verbose")  # some are for a GPU alone
    assert len(set(names)) == len(names)
    seeds = [int(name.rpartition("seed")[2]) for name in names]
    arms: dict[str, list[int]] = {}
    for name, seed in zip(names, seeds):
        arms.setdefault(name.rpartition("seed")[0], []).append(seed)
    assert all(of_arm == sorted(set(of_arm)) for of_arm in arms.values())
    overrides = [override for arm in read_study_file(study_path(study)).arms for override in arm]
    if not any("seed=" in override for override in overrides):  # else groups follow each other
        assert seeds == sorted(seeds) and len(set(map(seeds.count, seeds))) == 1
    text = study_path(study).read_text()
    assert re.findall(r"norm-plugin sweep (\w+)", text) in ([study], [])  # []: it has a script
    assert re.findall(r"(\d+) runs", text) in ([], [str(len(names))])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("", "mine.yaml: experiment: .* missing mandatory value: metric"),
        (
            "metric: bleu\n        mertic: x",
            "Key 'mertic' not in 'Experiment'.*; the keys are name,",
        ),
    ],
)
def test_an_experiment_with_wrong_keys_is_refused(tmp_path, changed, message):
    text = re.sub("metric: bleu.*", changed, (CONFIGS / "toy.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(CommandError, match=message):
        grid(str(tmp_path / "mine.yaml"))


def test_the_study_of_the_docs(tmp_path):
    page = (CONFIGS.parent / "docs" / "studies.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(experiment: .*?)```", page, re.DOTALL)
    (tmp_path / "docs.yaml").write_text(text)
    names = grid(str(tmp_path / "docs.yaml"))
    labels = ("layernorm", "rmsnorm", "adanorm-kaiming")
    assert set(names) == {f"{label}-seed{seed}" for label in labels for seed in (11, 12, 13)}


@pytest.fixture
def outside(tmp_path):
    """A corpus, an experiment and a study of the user's own, outside the checkout."""
    text = (CONFIGS / "toy.yaml").read_text().replace("dropout: 0.1", "dropout: 0.25")
    files = {
        "my_corpus.py": "print('prepares')\n",
        "my_experiment.yaml": text.replace("corpus: toy", "corpus: my_corpus.py"),
        "my_study.yaml": "experiment: my_experiment.yaml\narms:\n  - [norm=none]\n  - [norm=dyt]\n",
        "toy_study.yaml": "experiment: toy\narms:\n  - [norm=none]\n",
    }
    folder = tmp_path / "own"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../own/toy_study.yaml", {"toy/none-seed1.json"}),
        ("../own/my_experiment.yaml", {"my_experiment/layernorm-seed1.json"}),
        ("../own/my_study.yaml", {"my_experiment/none-seed1.json", "my_experiment/dyt-seed1.json"}),
    ],
)
def test_studies_and_experiments_outside_the_checkout(name, expected, outside, runs):
    """They are found by paths relative to the working directory; a corpus has its own module."""
    (runs.folder / "here").mkdir()
    argv = ("sweep", name, "--work", str(runs.work))
    result = runs.command(*argv, here=runs.folder / "here")
    assert result.returncode == 0, result.stderr
    results = runs.work / "results"
    assert {str(path.relative_to(results)) for path in results.rglob("*.json")} == expected
    calls = runs.take_calls()
    corpora = {call[0] for call in calls if call[0] != "-m"}
    train = next(call for call in calls if "fairseq_cli.train" in call)
    if "my_experiment" in str(expected):
        assert corpora == {str(outside / "my_corpus.py")}
        assert value(train, "--dropout") == "0.25" and value(train, "--arch").startswith("norm_")
    else:
        assert corpora == {"data-prep/toy.py"}


def test_a_corpus_may_be_a_folder_of_sentence_pairs(outside):
    file = outside / "my_experiment.yaml"
    file.write_text(file.read_text().replace("my_corpus.py", "../pairs/"))
    (spec,) = composed(str(file))
    assert spec.preparation.program == "data-prep/own_pairs.py"
    direction = {"src": "en", "tgt": "xx"}  # else it would be that of the alphabet
    assert spec.preparation.options == {"raw": str(outside.parent / "pairs"), **direction}
    assert spec.data.name == "pairs-en-xx"
    file.write_text(file.read_text().replace("../pairs/", "multi30k/"))
    with pytest.raises(CommandError, match="multi30k.py has the name of a file of data-prep/"):
        composed(str(file))


def test_an_experiment_outside_has_a_name_of_its_own(outside):
    (outside / "my_experiment.yaml").rename(outside / "toy.yaml")
    with pytest.raises(CommandError, match="toy.yaml has the name of a file of configs/"):
        grid(str(outside / "toy.yaml"))
    with pytest.raises(CommandError, match="the file .*gone.yaml does not exist"):
        grid(str(outside / "gone.yaml"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["toy", "norm=layernorm,nonorm"], "toy norm=nonorm: unknown norm 'nonorm'"),
        (["toy", "common.seed=2"], "common.seed=2: give seed=N instead"),
        (["toy", "checkpoint.save_dir=x"], "checkpoint.save_dir=x: give --work DIR instead"),
        (["toy", "norm=rmsnorm", "placement=rezero"], "rmsnorm: no site would have this norm"),
        (["toy", "model.norm_type=rmsnorm,none"], "model.norm_type=rmsnorm: give norm=X"),
        (["toy", "seed=range("], "range"),
    ],
)
def test_a_wrong_run_refuses_the_grid(argv, message):
    with pytest.raises(CommandError, match="(?s)" + message.replace("(", r"\(")):
        grid(*argv)


ENDED = types.SimpleNamespace(wait=lambda: 0)
"""A job that has ended."""


def resources(monkeypatch, gpus, *argv):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    made = composed(*argv)
    return count_jobs(request(*argv), made), gpus_of(made)


@pytest.mark.parametrize(
    ("argv", "threads"),
    [((), "2"), (("--jobs", "1"), "8"), (("--jobs", "2", "--threads", "1"), "1")],
)
def test_threads_are_divided_among_the_jobs(argv, threads, monkeypatch, tmp_path):
    """Each job gets them, and one of the GPUs for itself."""
    resources(monkeypatch, 4, "toy")
    argv = ("iwslt14", "seed=1,2,3", "--work", str(tmp_path), *argv)
    made, asked = composed(*argv), request(*argv)
    places = []
    monkeypatch.setattr("norm_lab.engine.jobs.start_job", lambda *a: places.append(a[1]) or ENDED)
    run_locally(asked, made, count_jobs(asked, made))
    assert len(places) == 3 and {place["OMP_NUM_THREADS"] for place in places} == {threads}
    assert {place["CUDA_VISIBLE_DEVICES"] for place in places} <= {"0", "1", "2"}


def test_more_jobs_than_gpus_share_them_evenly(monkeypatch, tmp_path):
    argv = ("iwslt14", "seed=1,2,3,4", "--work", str(tmp_path), "--jobs", "4")
    resources(monkeypatch, 2, "toy")
    made, asked, places, all_started = composed(*argv), request(*argv), [], Barrier(4)

    def start_job(folder, place, retry):
        all_started.wait(timeout=60)  # so that no place is used twice
        places.append(place["CUDA_VISIBLE_DEVICES"])
        return ENDED

    monkeypatch.setattr("norm_lab.engine.jobs.start_job", start_job)
    run_locally(asked, made, count_jobs(asked, made))
    assert sorted(places) == ["0", "0", "1", "1"]


def test_one_job_per_gpu_is_the_default(monkeypatch):
    assert resources(monkeypatch, 4, "iwslt14") == (4, ["0", "1", "2", "3"])
    assert resources(monkeypatch, 4, "toy", "--jobs", "6") == (6, [])  # its recipe is for the CPU
    monkeypatch.setattr("norm_lab.engine.jobs.MEMORY_OF_RUN", 1)
    assert resources(monkeypatch, 4, "toy", "seed=1,2,3") == (3, [])
    assert resources(monkeypatch, 4, "toy", "seed=range(1,12)") == (8, [])  # one per core
    monkeypatch.setattr("norm_lab.engine.jobs.MEMORY_OF_RUN", 2**60)
    assert resources(monkeypatch, 4, "toy", "seed=1,2,3") == (1, [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,6,7")
    assert gpus_of([spec_of("iwslt14")]) == ["2", "5", "6", "7"]


def test_the_time_left_of_a_grid():
    done, waiting = Status(DONE, seconds=100.0), Status(WAITING)
    running = Status(RUNNING, left=40.0)
    assert seconds_left([waiting, waiting], 2) is None  # nothing is measured yet
    assert seconds_left([done, waiting, waiting], 2) == 100
    assert seconds_left([done, running, running, waiting], 2) == 100  # no run is divided
    assert seconds_left([done, running, running, waiting], 1) == 180
    assert seconds_left([done, running], 2) == 40
    assert seconds_left([done, Status(RUNNING, seconds=30.0)], 2) == 70  # its own end is unknown
    assert seconds_left([done, *[Status(STOPPED, seconds=70.0)] * 3], 1) == 90  # they are resumed
    assert seconds_left([done, Status(FAILED), Status(DIVERGED)], 2) is None
    assert summary([done, running, waiting], 2) == (
        "1 done, 1 running, 1 waiting of 3; about 2 min left"
    )


def test_what_an_earlier_sweep_left_failed_is_waiting(tmp_path):
    spec = spec_of("toy", "--work", tmp_path)
    spec.folder.mkdir(parents=True)
    write_status(spec.folder, Status(FAILED, seconds=30.0))
    assert state_since(time.time() + 1, spec) == Status(WAITING, seconds=30.0)
    assert state_since(time.time() - 60, spec).state == FAILED


def sweep(runs, *argv, grid=SWEEP, **more):
    return runs.command(*grid, "--work", str(runs.work), *argv, **more)


def results(runs):
    return {name: text for name, text in runs.outcome().items() if name.startswith("results/")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    runs = FakeRuns(tmp_path_factory.mktemp("sweep"))
    result = sweep(runs)
    assert result.returncode == 0, result.stderr
    *runs_of_it, end, results, following = result.stdout.splitlines()
    assert end == "4 done of 4" and runs_of_it[-1].endswith("  done  37.00 BLEU")
    folder = results.removeprefix("results: ")
    assert following == f"next: norm-plugin report {folder}"
    return runs.points.stat().st_size, runs


def test_a_finished_grid_does_nothing(undisturbed):
    _, runs = undisturbed
    runs.take_calls()
    assert sweep(runs).returncode == 0
    assert runs.take_calls() == []


def test_a_sweep_that_is_killed_and_restarted_has_the_same_results(undisturbed, runs):
    points, expected = undisturbed
    # a slow machine writes its status more often: only the first third is reached by every sweep
    killed = sweep(runs, kill_at=random.Random(12).randint(points // 10, points // 3))
    assert killed.returncode == -signal.SIGKILL
    assert sweep(runs).returncode == 0
    assert results(runs) == results(expected) and len(results(runs)) == 4


@pytest.mark.usefixtures("warm")
def test_a_run_whose_job_vanished_is_no_success(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("norm_lab.engine.grid.run_locally", lambda *_: None)
    assert main(["sweep", "toy", "norm=layernorm", "--work", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 waiting of 1")


def states(runs):
    """Why runs have no result, by their names; None if they have one."""
    files = (runs.work / "results/toy").iterdir()
    return {path.stem: json.loads(path.read_text()).get("state") for path in files}


def test_runs_that_fail_or_diverge_are_recorded_and_the_others_go_on(runs):
    grid = ("sweep", "toy", "norm=none", "seed=1,2,3", "--jobs", "2")
    wrong = json.dumps({"2": "diverges", "3": "fails"})
    result = sweep(runs, grid=grid, FAKE_TRAINING_OF_SEED=wrong)
    assert result.returncode == 1
    assert "1 done, 1 failed, 1 diverged of 3" in result.stdout
    assert "none, seed 2  diverged in train: encoder.layers.0: its input has a NaN" in result.stdout
    assert "none, seed 3  failed in train: the disk is full" in result.stdout
    assert states(runs) == {"none-seed1": None, "none-seed2": "diverged", "none-seed3": "failed"}

    runs.take_calls()
    again = sweep(runs, grid=grid)  # what failed is tried again, and what diverged is not
    assert again.returncode == 0, again.stderr  # a divergence is a finding
    trained = [call for call in runs.take_calls() if "fairseq_cli.train" in call]
    assert [value(call, "--seed") for call in trained] == ["3"]
    assert states(runs) == {"none-seed1": None, "none-seed2": "diverged", "none-seed3": None}
    status = sweep(runs, "--status", grid=grid)
    assert status.stdout.splitlines()[-1] == "2 done, 1 diverged of 3"

    runs.take_calls()
    retried = sweep(runs, "--retry", grid=grid)
    assert retried.returncode == 0, retried.stderr
    trained = [call for call in runs.take_calls() if "fairseq_cli.train" in call]
    assert [value(call, "--seed") for call in trained] == ["2"]
    assert set(states(runs).values()) == {None}


@pytest.mark.parametrize("argv", [("--status",), ("--launcher", "submitit_slurm")])
def test_a_login_node_needs_no_gpu(argv, monkeypatch):
    """wikitext103 is in half precision, which only the machine of a run must have a GPU for."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert len(grid("wikitext103", *argv)) == 1
    with pytest.raises(CommandError, match="fp16 needs a GPU, .* or give common.fp16=false"):
        grid("wikitext103")


def test_options_of_the_launcher_are_those_of_submitit():
    given = ("hydra.launcher.timeout_min=2880", "hydra.launcher.partition=gpu")
    options = slurm_options(request("toy", *given).overrides)
    assert options["timeout_min"] == 2880 and options["slurm_partition"] == "gpu"
    assert options["slurm_signal_delay_s"] == 120  # a default


def test_a_job_that_slurm_requeues_is_submitted_again(monkeypatch):
    """submitit calls ``checkpoint`` before, and submits what it returns."""
    submitit = types.ModuleType("submitit.helpers")
    submitit.DelayedSubmission = lambda *call: call
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setitem(sys.modules, "submitit.helpers", submitit)
    job = SlurmJob(False, {"OMP_NUM_THREADS": "1"})
    assert job.checkpoint("folder") == (job, "folder")
