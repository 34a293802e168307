"""The scripts of the experiments: they pass their arguments to Python and print their own help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from printing_python import PYTHON, command

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "run_iwslt14": ["run", "iwslt14"],
    "run_iwslt15": ["run", "iwslt15"],
    "run_multi30k": ["run", "multi30k"],
    "run_news_commentary": ["run", "news_commentary"],
    "run_rt": ["run", "rt"],
    "run_sst5": ["run", "sst5"],
    "run_wmt14": ["run", "wmt14"],
    "ablate_warmup": ["study", "warmup"],
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
def test_arguments_reach_python_unchanged(name, checkout, tmp_path):
    argv = ["--norm-type", "power norm", "--", "--flag", "it's $HOME"]
    result = script(checkout, name, *argv, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    where, path, *given = result.stdout.splitlines()
    assert where == str(tmp_path)  # relative folders are relative to the working directory
    assert path == str(checkout)
    assert given == ["-P", "-m", "norm_plugin", *SCRIPTS[name], *argv]
    assert result.stderr == "set up\n"  # not among the output


def test_another_environment(checkout, tmp_path):
    command(tmp_path / "env/bin/python", "#!/usr/bin/env bash\necho mine\n")
    result = script(checkout, "demo", NORM_VENV=str(tmp_path / "env"), PYTHONPATH="more")
    assert result.stdout == "mine\n"
    command(checkout / "own/bin/python", PYTHON)
    result = script(checkout, "demo", folder=tmp_path, NORM_VENV="own", PYTHONPATH="more")
    assert result.stdout.splitlines()[1] == f"{checkout}:more"


@pytest.mark.parametrize("name", ["run_multi30k", "demo"])
def test_help_needs_no_environment(name):
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    result = script(ROOT, name, "--help", PATH=path, NORM_VENV="/nowhere")
    assert result.returncode == 0, result.stderr
    assert f"usage: norm-plugin {SCRIPTS[name][0]} " in result.stdout
    for flag in ("--norm-type", "--seed", "--work", "--smoke", "--dry-run", "-- FLAGS"):
        assert flag in result.stdout


def test_a_corpus_names_the_language_model(checkout):
    argv = ["ptb", "--seed", "2", "--", "--flag"]
    given = script(checkout, "run_lm", *argv).stdout.splitlines()[2:]
    assert given == ["-P", "-m", "norm_plugin", "run", *argv]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    result = script(ROOT, "run_lm", "ptb", "--help", PATH=path, NORM_VENV="/nowhere")
    assert "perplexity per word" in result.stdout
