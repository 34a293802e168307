"""The folders that a user names: relative to where they stand, with any name, in every stage."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """Where the user stands."""
    folder = tmp_path / "wo ich stehe, é"
    folder.mkdir()
    return folder


def of_stage(calls, module):
    (call,) = [call for call in calls if module in call]
    return call


def value(call, flag):
    return call[call.index(flag) + 1]


def test_relative_folders_count_from_where_the_user_stands(elsewhere, checkout):
    (elsewhere / "norms").mkdir()
    script = str(checkout.root / "scripts/run_wmt14.sh")
    words = ("--work", "w", "--results", "the results", "--raw", "r", "--user-dir", "norms")
    done = checkout.bash(script, *words, folder=elsewhere)
    assert done.returncode == 0, done.stderr
    calls = checkout.take_calls()
    assert value(calls[0], "--raw") == f"{elsewhere}/r"
    assert value(of_stage(calls, "fairseq_cli.generate"), "--user-dir") == f"{elsewhere}/norms"
    (result,) = elsewhere.rglob("layernorm-seed1.json")
    assert str(result.relative_to(elsewhere)).startswith("the results/wmt14_en_de_adanorm/")
    assert (elsewhere / "w/runs").is_dir()
    # What git tracks, and what belongs to the checkout, stays as it is.
    assert not (checkout.root / "results").exists() and not (checkout.root / "work").exists()


def test_a_relative_folder_of_corpora_too(elsewhere, checkout):
    (elsewhere / "corpora/wmt14").mkdir(parents=True)
    script = str(checkout.root / "scripts/run_wmt14.sh")
    words = (script, "--work", "w")
    done = checkout.bash(*words, folder=elsewhere, NORM_DATA_DIR="corpora")
    assert done.returncode == 0, done.stderr
    assert value(checkout.take_calls()[0], "--raw") == f"{elsewhere}/corpora/wmt14"


def test_the_users_own_plugin_is_given_to_every_stage(tmp_path, checkout):
    own = tmp_path / "own"
    own.mkdir()
    done = checkout.script("run_wmt14", "--user-dir", str(own), "--norm-type", "mine")
    assert done.returncode == 0, done.stderr
    calls = checkout.take_calls()
    for module in (
        "norm_plugin.checkpoints.average",
        "fairseq_cli.generate",
        "norm_plugin.experiments.results",
    ):
        assert value(of_stage(calls, module), "--user-dir") == str(own)


def test_a_changed_plugin_is_not_what_was_trained(tmp_path, checkout):
    own = tmp_path / "own"
    own.mkdir()
    (own / "__init__.py").write_text("a = 1\n")
    words = ("run_wmt14", "--user-dir", str(own))
    assert checkout.script(*words).returncode == 0
    assert checkout.script(*words).stdout.count("was done before") == 4
    (own / "__init__.py").write_text("a = 2\n")
    changed = checkout.script(*words)
    assert changed.returncode == 1 and "is of other settings or data; remove" in changed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--user-dir", "nowhere"], "--user-dir is nowhere, which is no folder"),
        (["--work", "a:b"], "fairseq splits paths at a colon"),
        (["--work", ""], "--work needs a value"),
    ],
)
def test_a_folder_that_cannot_be_is_refused(words, message, checkout):
    done = checkout.bash("scripts/run_wmt14.sh", *words)
    assert done.returncode == 1 and message in done.stderr
    assert len(done.stderr.splitlines()) == 1 and checkout.take_calls() == []


def test_results_that_cannot_be_written_are_seen_at_the_start(tmp_path, checkout):
    (tmp_path / "results").write_text("a file")
    done = checkout.script("run_wmt14", "--results", str(tmp_path / "results"))
    assert done.returncode == 1 and done.stderr.endswith("; choose another --results\n")
    assert checkout.take_calls() == []
