"""``norm-plugin VERB`` is the one command line of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest
from forked import ROOT, run_forked

from norm_plugin.cli import VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself_under_its_own_name(verb):
    result = run_forked("norm_plugin", verb, "--help")
    assert result.returncode == 0, result.stderr
    assert f"norm-plugin {verb} " in result.stdout


def test_without_a_verb_it_prints_the_folder_for_user_dir():
    assert run_forked("norm_plugin").stdout == f"{ROOT / 'norm_plugin'}\n"
    assert [
        verb for verb in VERBS if f"\n  {verb} " not in run_forked("norm_plugin", "-h").stdout
    ] == []


def test_an_unknown_verb_is_one_line():
    result = run_forked("norm_plugin", "trian", "toy")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: unknown command trian; choose from run, sweep, ")


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">&-", 1, "error: stdout is closed; to see no output, redirect it: >/dev/null\n"),
        (">/dev/full", 1, "error: cannot write the output: No space left on device\n"),
        (">/dev/null", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(redirection, code, error):
    command = ["bash", "-c", f"{sys.executable} -m norm_plugin {redirection}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", error)


def test_the_help_of_a_run_needs_the_standard_library_alone():
    """The scripts print it before the environment exists: -S hides what is installed."""
    command = [sys.executable, "-S", "-E", "-m", "norm_plugin", "run", "multi30k", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "bash scripts/run_multi30k.sh" in result.stdout
