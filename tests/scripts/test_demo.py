"""The demo from text to table: complete, repeatable, and not hurt by a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial

import pytest
import torch
from fairseq import checkpoint_utils
from forked import ROOT, WARM_PYTHON, be, forget, run_as_main, serve

from norm_lab import paths
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.cli import main
from norm_plugin.io.command_line import run_command

# A few updates per epoch, on the small validation set, and no position beyond its longest sentence:
# everything runs, nothing is learned. The kill after the second epoch leaves two.
QUICK = ("--max-epoch", "4", "--train-subset", "valid", "--max-tokens", "2000")
QUICK += ("--max-target-positions", "24")


def argv(work):
    flags = ("--", *QUICK, "--log-format", "simple")
    return ["demo", "--norm-type", "powernorm", "--work", str(work), *flags]


def fork(work, log, run=run_as_main):
    """The command in a session of its own, whose processes are forked off this one.

    ``test_experiment_scripts.py`` shows that ``scripts/demo.sh`` is this command.

    Its own commands are started by ``run``. Returns the first process, and a file that ends when
    the last of them has ended.
    """
    last, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        with open(log, "a") as stream:
            be(partial(demo, run), argv(work), (stream.fileno(), stream.fileno()), ROOT)
    os.close(held)
    return child, last


def status_of(child, last):
    """The exit status, when all have ended."""
    _, status = os.waitpid(child, 0)
    assert os.read(last, 1) == b""
    os.close(last)
    return os.waitstatus_to_exitcode(status)


def demo(run, argv):
    """The command, whose own commands are started by ``run``; returns its exit status."""
    forget()
    paths.PYTHON[:] = WARM_PYTHON  # also of the commands that the server starts
    serve(run)
    try:
        run_command(partial(main, argv))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def be_killed_after_two_epochs(argv):
    """Run ``python ARGV``; a training kills its whole session after its second checkpoint."""
    save = checkpoint_utils.save_checkpoint

    def save_and_die(cfg, trainer, epoch_itr, *more):
        save(cfg, trainer, epoch_itr, *more)
        if epoch_itr.epoch == 2 and epoch_itr.end_of_epoch():
            os.killpg(0, signal.SIGKILL)

    checkpoint_utils.save_checkpoint = save_and_die
    return run_as_main(argv)


def only(paths):
    (path,) = paths
    return path


def outcome(work):
    """Result without what differs from run to run, and the averaged weights."""
    result = json.loads(only((work / "results/toy_demo").glob("*.json")).read_text())
    for key in ("date", "git", "training", "machine"):
        del result[key]
    averaged = only((work / "runs/toy_demo").glob("*/averaged.pt"))
    return result, load_checkpoint(averaged)["model"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An undisturbed run: what it printed, and where it worked."""
    work = tmp_path_factory.mktemp("demo")
    log = work.with_suffix(".txt")
    assert status_of(*fork(work, log)) == 0, log.read_text()
    return log.read_text(), work


def test_the_demo_ends_with_a_table_a_result_and_a_page(finished):
    printed, work = finished
    result, _ = outcome(work)
    assert "-max-epoch-4-" in result["norm"]  # flags make another run
    assert result["differs"]["optimization.max_epoch"] == 4
    assert result["sites"]["encoder-final"] == "powernorm"
    assert result["sites"]["decoder-final"] == "layernorm"
    manifest = json.loads((work / "data/toy/manifest.json").read_text())
    assert result["data"]["checksum"] == manifest["checksum"]
    assert result["settings"]["model"]["norm_warmup_updates"] == 100
    row = only([line for line in printed.splitlines() if line.startswith(f"| {result['norm']}")])
    assert f"| {result['scores']['tokenized']['score']:.2f} |" in row
    assert result["scores"]["sacrebleu"]["signature"] in printed
    assert f"Results: {work}/results/toy_demo" in printed
    assert f"{work}/demo/index.html" in printed
    assert result["norm"] in (work / "demo/index.html").read_text()


def test_a_finished_demo_does_nothing(finished, tmp_path):
    printed, work = finished
    changing = ("lock", "status.json")
    files = [
        path for path in work.rglob("*") if path.is_file() and not path.name.endswith(changing)
    ]
    files = [path for path in files if path.parent.name not in ("logs", "demo")]
    before = {path: path.stat().st_mtime_ns for path in files}
    log = tmp_path / "output"
    assert status_of(*fork(work, log)) == 0, log.read_text()
    assert log.read_text() in printed
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_kill_in_training_changes_nothing_in_the_end(finished, tmp_path):
    log = tmp_path / "output"
    shutil.copytree(finished[1] / "data", tmp_path / "data")
    assert status_of(*fork(tmp_path, log, be_killed_after_two_epochs)) == -signal.SIGKILL
    assert only(tmp_path.glob("runs/toy_demo/*/checkpoints/checkpoint2.pt"))
    # and as if it had come while fairseq was copying its last checkpoint
    copy = only(tmp_path.glob("runs/toy_demo/*/checkpoints/checkpoint_last.pt"))
    copy.write_bytes(copy.read_bytes()[:1000])

    assert status_of(*fork(tmp_path, log)) == 0, log.read_text()
    log_text = only(tmp_path.glob("runs/toy_demo/*/logs/train.log")).read_text()
    assert "checkpoint_last.pt was damaged; replaced by" in log_text
    (result, weights), (expected, expected_weights) = outcome(tmp_path), outcome(finished[1])
    for each in (result, expected):
        # the kill comes between a checkpoint and the lines on its epoch
        del each["curves"]["train"], each["curves"]["train_inner"]
    assert result == expected
    assert all(torch.equal(weights[key], value) for key, value in expected_weights.items())
