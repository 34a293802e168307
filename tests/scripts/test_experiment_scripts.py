"""The scripts of the experiments: they hand their words to Python, and explain themselves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from printed_words import PYTHON, command

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "run_iwslt14": ["run", "iwslt14"],
    "run_iwslt15": ["run", "iwslt15"],
    "run_multi30k": ["run", "multi30k"],
    "run_rt": ["run", "rt"],
    "run_sst5": ["run", "sst5"],
    "run_wmt14": ["run", "wmt14"],
    "demo": ["demo"],
}


def script(root, name, *argv, folder=None, **environment):
    return subprocess.run(
        ["bash", str(root / f"scripts/{name}.sh"), *argv],
        cwd=folder or root,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_reach_python_as_they_are(name, checkout, tmp_path):
    argv = ["--norm-type", "power norm", "--", "--flag", "it's $HOME"]
    done = script(checkout, name, *argv, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    where, path, *given = done.stdout.splitlines()
    assert where == str(tmp_path)  # relative folders count from where the user stands
    assert path == str(checkout)
    assert given == ["-P", "-m", "norm_plugin", *SCRIPTS[name], *argv]
    assert done.stderr == "set up\n"  # not among the output


def test_another_environment(checkout, tmp_path):
    command(tmp_path / "env/bin/python", "#!/usr/bin/env bash\necho mine\n")
    done = script(checkout, "demo", NORM_VENV=str(tmp_path / "env"), PYTHONPATH="more")
    assert done.stdout == "mine\n"
    command(checkout / "own/bin/python", PYTHON)
    done = script(checkout, "demo", folder=tmp_path, NORM_VENV="own", PYTHONPATH="more")
    assert done.stdout.splitlines()[1] == f"{checkout}:more"


@pytest.mark.parametrize("name", ["run_multi30k", "demo"])
def test_help_needs_no_environment(name):
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = script(ROOT, name, "--help", PATH=path, NORM_VENV="/nowhere")
    assert done.returncode == 0, done.stderr
    assert f"usage: norm-plugin {SCRIPTS[name][0]} " in done.stdout
    for flag in ("--norm-type", "--seed", "--work", "--smoke", "--dry-run", "-- FLAGS"):
        assert flag in done.stdout


def test_the_warmup_study_is_trained_and_then_drawn(checkout, tmp_path):
    done = script(checkout, "ablate_warmup", "--jobs", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [str(tmp_path), str(checkout)]
    assert lines[2:9] == ["-P", "-m", "norm_plugin", "sweep", "warmup", "--jobs", "2"]
    assert lines[11:] == ["-P", "-m", "norm_plugin", "warmup", "--jobs", "2"]


def test_a_corpus_names_the_language_model(checkout):
    argv = ["ptb", "--seed", "2", "--", "--flag"]
    given = script(checkout, "run_lm", *argv).stdout.splitlines()[2:]
    assert given == ["-P", "-m", "norm_plugin", "run", *argv]
    for wrong in ([], ["multi30k"], ["--seed", "2"]):
        done = script(checkout, "run_lm", *wrong)
        assert done.returncode == 2 and "choose enwik8, ptb, tiny" in done.stderr
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = script(ROOT, "run_lm", "ptb", "--help", PATH=path, NORM_VENV="/nowhere")
    assert "perplexity a word" in done.stdout
