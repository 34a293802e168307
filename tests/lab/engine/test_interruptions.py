"""Runs that are killed, that fail, or that meet what another one left."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal

import pytest

from fake_runs import FakeRuns, of_stage, value
from norm_lab.engine.state import WAITING, Status, read_status

KILLS = 3  # a run
DONE = "was done before"
RUN = ("iwslt14", "norm=powernorm")
NO_CURVES = {"train": [], "train_inner": [], "valid": []}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """How many points a run has, and what it leaves."""
    runs = FakeRuns(tmp_path_factory.mktemp("undisturbed"))
    assert runs.run(*RUN).returncode == 0
    return runs.points.stat().st_size, runs.outcome()


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_points_change_nothing_in_the_end(seed, undisturbed, runs):
    points, expected = undisturbed
    chance = random.Random(seed)
    for kill in range(KILLS):
        killed = runs.run(*RUN, kill_at=chance.randint(1, points))
        # a later run has less to do, and may come to its end before that point
        assert killed.returncode == -signal.SIGKILL or kill > 0
    result = runs.run(*RUN)
    assert result.returncode == 0, result.stderr
    assert runs.outcome() == expected


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_a_run_that_is_killed_alone(kind, runs):
    with runs.going_on("wmt14") as child:
        runs.training.touch()
        os.kill(child, kind)
        os.waitpid(child, 0)
        # The training holds the lock, so that this comes through only when it has ended.
        while "is in use" in (result := runs.run("wmt14")).stderr:
            assert result.returncode == 1
    assert result.returncode == 0, result.stderr


def test_a_run_that_goes_on_is_told_from_one_whose_process_is_gone(runs):
    grid = ("sweep", "toy", "norm=layernorm,rmsnorm", "--work", str(runs.work), "--status")
    with runs.going_on("toy") as child:
        status = runs.command(*grid).stdout
        assert (
            "layernorm, seed 1  running: train" in status and "1 running, 1 waiting of 2" in status
        )
        second = runs.run("toy")
        assert second.returncode == 1
        assert "is in use: the same run is running in another process" in second.stderr
        assert runs.run("toy", "seed=2").returncode == 0  # another one is free
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (lock,) = runs.work.glob("runs/*/layernorm-seed1/lock")
        with open(lock) as stream:  # its commands hold it, and end with it
            fcntl.flock(stream, fcntl.LOCK_EX)
        status = runs.command(*grid).stdout
        assert "layernorm, seed 1  stopped" in status and "1 waiting, 1 stopped of 2" in status
        for place in ("toy", str(runs.work), str(runs.work / "results")):  # no grid: what began
            begun = runs.command("status", place, "--work", str(runs.work)).stdout
            assert "layernorm, seed 1  stopped" in begun and "1 done, 1 stopped of 2" in begun


def test_a_training_without_a_checkpoint_is_not_done(runs):
    for _ in range(2):
        result = runs.run("wmt14", FAKE_TRAINING="makes nothing")
        assert result.returncode == 1
        assert "error: train failed: it ended without" in result.stderr
        assert "checkpoint_last.pt" in result.stderr
    again = runs.run("wmt14")  # and with a GPU it trains
    assert again.returncode == 0, again.stderr
    assert DONE not in again.stdout


@pytest.mark.parametrize(
    ("product", "left"), [("checkpoint_last.pt", 0), ("layernorm-seed1.json", 1)]
)
def test_a_stage_whose_product_is_gone_is_done_again_and_what_follows_too(product, left, runs):
    runs.run("wmt14")
    (path,) = [path for path in runs.work.rglob(product) if path.parent.name != "logs"]
    before = runs.outcome()
    path.write_text("")  # an empty file is no product either
    again = runs.run("wmt14")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(DONE) == left
    assert runs.outcome() == before


def test_a_rerun_clears_what_a_dead_one_left(runs):
    runs.run("wmt14")
    (averaged,) = runs.work.rglob("averaged.pt")
    (result,) = runs.work.glob("results/*/*.json")
    left = [
        averaged.with_name("averaged.pt.123.tmp"),
        averaged.with_name("generate.log.tmp"),
        averaged.with_name("status.json.123.tmp"),
        result.with_name(f"{result.name}.123.tmp"),
    ]
    other = result.with_name("other-seed1.json.123.tmp")  # of a run that may be going on
    for path in [*left, other]:
        path.write_text("half")
    runs.run("wmt14")
    assert [path for path in left if path.exists()] == [] and other.exists()


@pytest.mark.parametrize("training", ["", "fails", "diverges"])
def test_what_a_run_writes_is_on_the_disk_before_it_counts(training, runs):
    runs.run("toy", FAKE_TRAINING=training)
    assert not runs.not_on_disk.exists(), runs.not_on_disk.read_text()


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"\0\0\0\0",
        b"\xff",
        b"{",
        b"[]",
        b"{}",
        b'{"stages": 1}',
        b'{"state": [], "stages": {}}',
        b"[" * 9999,
    ],
)
def test_a_status_that_a_power_cut_has_damaged_counts_as_absent(left, tmp_path):
    status = tmp_path / "status.json"
    status.write_bytes(left)
    for run in (tmp_path, status):  # the second is no folder
        assert read_status(run) == Status(WAITING)


def test_a_run_whose_status_a_power_cut_has_damaged_goes_on(undisturbed, runs):
    _, expected = undisturbed
    runs.run(*RUN, FAKE_TRAINING="fails")
    (status,) = runs.work.glob("runs/*/*/status.json")
    status.write_bytes(b"\xff")
    result = runs.run(*RUN)  # begun
    assert result.returncode == 0, result.stderr
    assert runs.outcome() == expected
    status.write_bytes(b"\xff")
    again = runs.run(*RUN)  # finished
    assert again.returncode == 0 and DONE not in again.stdout, again.stderr
    assert runs.outcome() == expected


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "finished"])
def test_a_training_with_other_settings_is_left_alone(begun, runs):
    environment = {"FAKE_TRAINING": "fails"} if begun else {}
    runs.run("toy", **environment)
    (run,) = runs.work.rglob("run.json")
    ours = run.read_text()
    run.write_text(ours.replace('"max_epoch": ', '"max_epoch": 1'))
    (status,) = runs.work.rglob("status.json")
    records = status.read_text()
    status.write_text(records.replace('"key": "', '"key": "other'))
    other = runs.run("toy")
    assert other.returncode == 1
    assert "is of other settings or data; remove" in other.stderr
    seen = runs.command("sweep", "toy", "--status", "--work", str(runs.work))
    assert "layernorm, seed 1  failed: " in seen.stdout
    assert "is of other settings or data; remove" in seen.stdout
    assert not [call for call in runs.take_calls()[2:] if "fairseq_cli.train" in call]
    run.write_text(ours)
    status.write_text(records)  # and the first settings still go on, or are done
    assert runs.run("toy").returncode == 0
    (manifest,) = runs.work.rglob("manifest.json")
    manifest.write_text(manifest.read_text() + "\n")
    assert "is of other settings or data" in runs.run("toy").stderr


def test_a_training_with_other_settings_is_left_alone_without_its_status(runs):
    runs.run("toy")
    (run,) = runs.work.rglob("run.json")
    run.write_text(run.read_text().replace('"max_epoch": ', '"max_epoch": 1'))
    for status in runs.work.rglob("status.json"):
        status.unlink()
    refused = runs.run("toy")
    assert refused.returncode == 1 and "is of other settings or data" in refused.stderr


def test_a_training_does_not_go_on_on_another_device(runs):
    """Its result would name the last one alone."""
    runs.run("wmt14", FAKE_TRAINING="fails")
    (status,) = runs.work.rglob("status.json")
    status.write_text(status.read_text().replace('"device": "cpu"', '"device": "gpu"'))
    refused = runs.run("wmt14")
    assert refused.returncode == 1
    assert "is of a training on the gpu, not the cpu; remove" in refused.stderr


def test_the_largest_peak_memory_and_the_time_of_all_attempts_count(runs):
    runs.run("toy", FAKE_TRAINING="fails")
    (status,) = runs.work.rglob("status.json")
    text = re.sub('"memory": [0-9]+', f'"memory": {2**60}', status.read_text())
    status.write_text(re.sub('"seconds": [0-9.]+', '"seconds": 5000', text))
    assert runs.run("toy").returncode == 0
    ended = read_status(status.parent)
    assert ended.stages["train"].memory == 2**60 and ended.seconds > 5000


def test_a_failure_is_recorded_with_its_reason_until_the_run_succeeds(runs):
    result = runs.run("toy", FAKE_TRAINING="fails")
    assert result.returncode == 1
    *tail, error = result.stderr.splitlines()
    assert tail[-1] == "  | error: the disk is full"
    assert error.startswith("error: train failed: the disk is full; full output: ")
    (record,) = runs.work.glob("results/toy/layernorm-seed1.json")
    failure = json.loads(record.read_text())
    assert (failure["state"], failure["reason"]) == ("failed", "the disk is full")
    assert failure["curves"] == NO_CURVES  # as its log says nothing
    assert failure["progress"].startswith("3 ")  # updates
    assert failure["date"].endswith("Z")
    # one that was killed is said to be so, whatever it printed before
    killed = runs.run("toy", FAKE_TRAINING="is killed")
    assert "error: train failed: killed by SIGKILL" in killed.stderr
    assert json.loads(record.read_text())["reason"].startswith("killed by SIGKILL")
    assert runs.run("toy").returncode == 0
    assert "state" not in json.loads(record.read_text())


def test_a_run_that_diverged_is_recorded_and_not_trained_again(runs):
    diverged = runs.run("toy", FAKE_TRAINING="diverges")
    assert diverged.returncode == 1
    assert "train diverged: encoder.layers.0: its input has a NaN" in diverged.stderr
    (record,) = runs.work.glob("results/toy/layernorm-seed1.json")
    failure = json.loads(record.read_text())
    assert failure["state"] == "diverged" and "has a NaN" in failure["reason"]
    assert failure["curves"] == NO_CURVES
    runs.take_calls()
    again = runs.run("toy")
    assert again.returncode == 1 and "train diverged" in again.stderr
    assert all("fairseq_cli.train" not in call for call in runs.take_calls())
    assert json.loads(record.read_text()) == failure
    assert runs.run("toy", "--retry").returncode == 0
    assert "state" not in json.loads(record.read_text())


def test_a_finished_run_whose_corpus_is_gone_keeps_its_result(runs):
    runs.run("toy")
    (log,) = runs.work.rglob("logs/train.log")  # it has the full output
    assert log.read_text() == "".join(f"epoch {epoch}\n" for epoch in (1, 2, 3, 4))
    again = runs.run("toy", FAKE_DATA="fails")  # what is prepared is not looked at again
    assert again.returncode == 0, again.stderr
    (runs.work / "data/toy.prepared").unlink()
    again = runs.run("toy", FAKE_DATA="fails")
    assert again.returncode == 1 and "error: no corpus" in again.stderr
    assert len(list(runs.work.glob("results/toy/*.json"))) == 1


# --- the user's own folders ------------------------------------------------------------------


@pytest.fixture
def here(tmp_path):
    """The working directory of the user."""
    folder = tmp_path / "wo ich stehe, é"
    folder.mkdir()
    return folder


def own_plugin(folder, name):
    """A --user-dir; its name is that of a package, so each test has another."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("import norm_plugin\n")
    return folder / name


def test_relative_folders_count_from_where_the_user_stands(here, runs):
    own = own_plugin(here, "relative_norms")
    argv = ("--work", "w", "--results", "the results", "--raw", "r", "--user-dir", own.name)
    completed = runs.command("run", "wmt14", *argv, here=here)
    assert completed.returncode == 0, completed.stderr
    calls = runs.take_calls()
    assert value(calls[0], "--raw") == f"{here}/r"
    assert value(of_stage(calls, "fairseq_cli.train"), "--user-dir") == str(own)
    (result,) = here.rglob("layernorm-seed1.json")
    assert str(result.relative_to(here)).startswith("the results/wmt14_en_de_adanorm/")
    assert (here / "w/runs").is_dir()


def test_a_relative_folder_of_corpora_too(here, runs):
    (here / "corpora/wmt14").mkdir(parents=True)
    result = runs.command("run", "wmt14", "--work", "w", here=here, NORM_DATA_DIR="corpora")
    assert result.returncode == 0, result.stderr
    assert value(runs.take_calls()[0], "--raw") == f"{here}/corpora/wmt14"


def test_a_changed_plugin_is_not_what_was_trained(here, runs):
    own = own_plugin(here, "changed_norms")
    argv = ("wmt14", "--user-dir", str(own))
    assert runs.run(*argv).returncode == 0
    assert runs.run(*argv).stdout.count(DONE) == 2
    (own / "__init__.py").write_text("import norm_plugin\nprint('patches something')\n")
    changed = runs.run(*argv)
    assert changed.returncode == 1
    assert "is of another version of changed_norms/__init__.py; remove" in changed.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--user-dir", "nowhere"], "nowhere: it is not a folder"),
        (["--work", "a:b"], "fairseq splits paths at a colon"),
    ],
)
def test_a_folder_that_cannot_be_is_refused(argv, message, runs):
    result = runs.command("run", "wmt14", *argv)
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1 and runs.take_calls() == []


def test_results_that_cannot_be_written_are_seen_at_the_start(runs):
    (runs.folder / "results").write_text("a file")
    result = runs.run("wmt14", "--results", str(runs.folder / "results"))
    assert result.returncode == 1 and result.stderr.endswith("; choose another --results\n")
    assert runs.take_calls() == []
