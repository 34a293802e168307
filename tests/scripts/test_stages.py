"""scripts/lib.sh: a stage is done once, and again when its words or those before it change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lib(checkout):
    """Run shell code after sourcing lib.sh, in a run folder of its own."""
    return checkout.lib


BEGIN = "begin toy toy; "


def test_a_stage_runs_once(lib):
    code = BEGIN + "stage average echo one; stage generate echo two"
    first, second = lib(code), lib(code)
    assert "one\n" in first.stdout and "two\n" in first.stdout
    assert "one\n" not in second.stdout and "two\n" not in second.stdout
    assert second.stdout.count("was done before") == 2


def test_changed_words_run_it_and_what_follows_again(lib):
    lib(BEGIN + "stage average echo one; stage generate echo two")
    again = lib(BEGIN + "stage average echo other; stage generate echo two")
    assert "other\n" in again.stdout and "two\n" in again.stdout


def test_a_failed_stage_is_not_done(lib):
    failed = lib(BEGIN + "stage average false; echo unreached")
    assert failed.returncode != 0 and "unreached" not in failed.stdout
    assert "one\n" in lib(BEGIN + "stage average echo one").stdout


@pytest.mark.parametrize("first", ["false", "true"], ids=["begun", "finished"])
def test_training_with_other_settings_is_left_alone(first, lib):
    code = BEGIN + f"stage train {first}"
    lib(code)
    other = lib(BEGIN + "stage train echo reached")
    assert other.returncode != 0 and "reached" not in other.stdout
    assert "is of other settings or data; remove" in other.stderr
    # and the first settings still go on, or are done
    assert lib(code).returncode == (0 if first == "true" else 1)


def test_further_flags_make_another_run(lib):
    show = BEGIN + 'echo "$label"'
    plain, one, two = lib(show), lib(show, "--", "--a", "b c"), lib(show, "--", "--a", "b", "c")
    assert plain.stdout == "layernorm\n"
    assert one.stdout.startswith("layernorm+") and two.stdout.startswith("layernorm+")
    assert one.stdout != two.stdout


def test_the_same_run_cannot_go_on_twice(lib, checkout):
    lock = checkout.work / "runs/toy/layernorm-seed1/lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        subprocess.run(["flock", "--nonblock", str(held.fileno())], pass_fds=[held.fileno()])
        second = lib(BEGIN + "echo unreached")
    assert second.returncode != 0 and "unreached" not in second.stdout
    assert "is in use: the same run is going on elsewhere" in second.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--norm-type"], "--norm-type needs a value"),
        (["--colour", "red"], "unknown option --colour"),
        (["powernorm", "x"], "unknown option powernorm"),
    ],
)
def test_wrong_options_are_refused(words, message, lib):
    done = lib("echo unreached", *words)
    assert done.returncode != 0 and message in done.stderr and not done.stdout


def test_run_multi30k_refuses_an_unknown_preset():
    done = subprocess.run(
        ["bash", "scripts/run_multi30k.sh", "--preset", "gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr == "error: --preset is gpu; choose paper or cpu\n"
