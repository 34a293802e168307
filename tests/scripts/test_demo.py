"""The demo from text to table: complete, repeatable, and not hurt by a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from norm_plugin.checkpoints.files import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
# One layer and five updates an epoch: everything runs, nothing is learned.
QUICK = ("--max-epoch", "4", "--max-tokens", "20000", "--encoder-layers", "1")


def command(work):
    flags = ("--", *QUICK, "--decoder-layers", "1", "--log-format", "simple")
    return ["bash", "scripts/demo.sh", "--norm-type", "powernorm", "--work", str(work), *flags]


def run(work):
    done = subprocess.run(
        command(work), cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def only(paths):
    (path,) = paths
    return path


def outcome(work):
    """Result without what differs from run to run, and the averaged weights."""
    result = json.loads(only((work / "results/toy").glob("*.json")).read_text())
    for key in ("date", "git", "training", "machine"):
        del result[key]
    averaged = only((work / "runs/toy").glob("*/averaged.pt"))
    return result, load_checkpoint(averaged)["model"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An undisturbed run: what it printed, and where it worked."""
    work = tmp_path_factory.mktemp("demo")
    return run(work), work


def test_the_demo_ends_with_a_table_and_a_result(finished):
    done, work = finished
    result, _ = outcome(work)
    assert result["norm"].startswith("powernorm-decoder-layers-1-")  # flags make another run
    assert result["differs"]["max-epoch"] == "4"
    assert result["sites"]["encoder-final"] == "powernorm"
    assert result["sites"]["decoder-final"] == "layernorm"
    manifest = json.loads((work / "data/toy/manifest.json").read_text())
    assert result["data"]["checksum"] == manifest["checksum"]
    assert result["settings"]["model"]["norm_warmup_updates"] == 100
    row = only(
        [line for line in done.stdout.splitlines() if line.startswith(f"| {result['norm']}")]
    )
    assert f"| {result['scores']['tokenized']['score']:.2f} |" in row
    assert result["scores"]["sacrebleu"]["signature"] in done.stdout
    assert f"Results: {work}/results/toy" in done.stdout


def test_a_finished_demo_does_nothing(finished):
    _, work = finished
    kept = ("lock", "status.json")
    files = [path for path in work.rglob("*") if path.is_file() and not path.name.endswith(kept)]
    files = [path for path in files if path.parent.name != "logs"]
    before = {path: path.stat().st_mtime_ns for path in files}
    again = run(work)
    assert again.stdout.count("was done before") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_kill_in_training_changes_nothing_in_the_end(finished, tmp_path):
    with subprocess.Popen(
        command(tmp_path),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        while not list(tmp_path.glob("runs/toy/*/checkpoints/checkpoint2.pt")):
            assert process.poll() is None, process.stdout.read()
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.read()  # its end comes when the last process has let go of its files
    # and as if it had come while fairseq was copying its last checkpoint
    last = only(tmp_path.glob("runs/toy/*/checkpoints/checkpoint_last.pt"))
    last.write_bytes(last.read_bytes()[:1000])

    run(tmp_path)
    log = only(tmp_path.glob("runs/toy/*/logs/train.log")).read_text()
    assert "checkpoint_last.pt was damaged; replaced by" in log
    (result, weights), (expected, expected_weights) = outcome(tmp_path), outcome(finished[1])
    for one in (result, expected):
        del one["curves"][
            "train"
        ]  # the kill may come between a checkpoint and the line on its epoch
    assert result == expected
    assert all(torch.equal(weights[key], value) for key, value in expected_weights.items())
