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
# A command of a stage: it says its word and makes the file of the stage that is named.
MAKE = """make() { echo "$2"; mkdir -p "$run/checkpoints"; echo "$2" >"$(product "$1")"; }; """


def two(word):
    """Two stages, the first of which says ``word``, the other two."""
    return BEGIN + MAKE + f"stage average make average {word}; stage generate make generate two"


def test_a_stage_runs_once(lib):
    first, second = lib(two("one")), lib(two("one"))
    assert "one\n" in first.stdout and "two\n" in first.stdout
    assert "one\n" not in second.stdout and "two\n" not in second.stdout
    assert second.stdout.count("was done before") == 2


def test_changed_words_run_it_and_what_follows_again(lib):
    lib(two("one"))
    again = lib(two("other"))
    assert "other\n" in again.stdout and "two\n" in again.stdout


def test_a_failed_stage_is_not_done(lib):
    failed = lib(BEGIN + "stage average false; echo unreached")
    assert failed.returncode != 0 and "unreached" not in failed.stdout
    assert "one\n" in lib(two("one")).stdout


def test_a_stage_that_made_nothing_is_not_done(lib, checkout):
    for _ in range(2):  # and not the next time either
        idle = lib(BEGIN + "stage average true; echo unreached")
        assert idle.returncode == 1 and "unreached" not in idle.stdout
        averaged = checkout.work / "runs/toy/layernorm-seed1/averaged.pt"
        assert idle.stderr.startswith(f"error: average ended without {averaged}")
        averaged.write_text("")  # nor with an empty file


def test_a_stage_whose_product_is_gone_is_done_again_and_what_follows_too(lib, checkout):
    lib(two("one"))
    (checkout.work / "runs/toy/layernorm-seed1/averaged.pt").unlink()
    again = lib(two("one"))
    assert "average was done before, but " in again.stdout
    assert "one\n" in again.stdout and "two\n" in again.stdout


@pytest.mark.parametrize("end", ["; false", ""], ids=["begun", "finished"])
def test_training_with_other_settings_is_left_alone(end, lib):
    first = BEGIN + MAKE + 'work() { make train "$1"; ' + (end[2:] or ":") + "; }; "
    code = first + "stage train work one"
    lib(code)
    other = lib(BEGIN + "stage train echo reached")
    assert other.returncode != 0 and "reached" not in other.stdout
    assert "is of other settings or data; remove" in other.stderr
    # and the first settings still go on, or are done
    assert lib(code).returncode == (1 if end else 0)


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
