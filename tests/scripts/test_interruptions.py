"""What a run leaves that goes wrong: no stamp, no child, no file that the next one takes."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest


def test_a_training_without_a_checkpoint_is_not_done(checkout):
    for _ in range(2):
        done = checkout.script("run_wmt14", FAKE_TRAINING="makes nothing")
        assert done.returncode == 1
        assert "error: train ended without" in done.stderr
        assert "checkpoint_last.pt" in done.stderr
    assert not list(checkout.work.rglob("stages/train"))
    again = checkout.script("run_wmt14")  # and with a GPU it trains
    assert again.returncode == 0, again.stderr
    assert "was done before" not in again.stdout


def test_a_stamp_of_a_training_without_a_checkpoint_is_not_trusted(checkout):
    checkout.script("run_wmt14")
    (last,) = checkout.work.rglob("checkpoint_last.pt")
    last.unlink()
    again = checkout.script("run_wmt14")
    assert again.returncode == 0, again.stderr
    assert last.is_file()
    assert "train was done before, but " in again.stdout
    assert again.stdout.count("was done before") == 1  # what follows is done again


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_a_script_that_is_killed_alone(kind, checkout):
    checkout.points.write_text("")
    with subprocess.Popen(
        ["bash", "scripts/run_wmt14.sh", "--work", str(checkout.work)],
        cwd=checkout.root,
        env={**checkout.environment(), "FAKE_TRAINING": "goes on"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            for line in process.stdout:
                if line == "training\n":
                    break
            process.send_signal(kind)
            # The end of the pipe comes when the last process has let go of it.
            process.communicate(timeout=60)
        finally:
            end_group(process.pid)
    done = checkout.script("run_wmt14")
    assert done.returncode == 0, done.stderr


def end_group(leader):
    """End what is left of a session, so that a failed test leaves nothing behind."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_rerun_clears_what_a_dead_one_left(checkout):
    checkout.script("run_wmt14")
    (averaged,) = checkout.work.rglob("averaged.pt")
    (result,) = checkout.work.glob("results/*/*.json")
    left = [
        averaged.with_name("averaged.pt.123.tmp"),
        averaged.with_name("generate.log.tmp"),
        result.with_name(f"{result.name}.123.tmp"),
    ]
    other = result.with_name("other-seed1.json.123.tmp")  # of a run that may be going on
    for path in [*left, other]:
        path.write_text("half")
    checkout.script("run_wmt14")
    assert [path for path in left if path.exists()] == [] and other.exists()


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_flags_are_checked_before_the_data_is_prepared(words, checkout):
    done = checkout.script("run_wmt14", *words, FAKE_REFUSED="layernorm")
    assert (done.returncode, done.stderr) == (1, "error: no such flag for layernorm\n")
    assert checkout.take_calls() == [] and checkout.outcome() == {}


def test_the_demo_checks_the_flags_of_its_last_norm_before_it_trains_the_first(checkout):
    done = checkout.script("demo", "--", "--flag", FAKE_REFUSED="none")
    assert (done.returncode, done.stderr) == (1, "error: no such flag for none\n")
    assert checkout.take_calls() == []


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", "01", "1e3", "2147483648", " 1", "99999999999"])
def test_a_seed_is_a_whole_number(seed, checkout):
    done = checkout.script("run_wmt14", "--seed", seed)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: --seed is {seed}; it must be a whole number from 0 to 2147483647\n"
    )
