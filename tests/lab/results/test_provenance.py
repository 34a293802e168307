from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import norm_plugin
from norm_lab.results.provenance import git_state, machine, plain_settings, versions


def test_settings_lose_every_path() -> None:
    cfg = {
        "common": {
            "seed": 1,
            "user_dir": "norm_plugin",
            "log_file": "logs/train.log",
            "tensorboard_logdir": "runs/1",
            "plasma_path": "/tmp/plasma",
        },
        "checkpoint": {"save_dir": "checkpoints", "restore_file": "checkpoint_last.pt"},
        "task": {
            "data": "prepared/bin",
            "eval_bleu_args": '{"codes": "/home/someone/codes"}',
            "files": ["/home/someone/a", "kept"],
            "ratio": "train/valid",
        },
        "model": argparse.Namespace(embed_path="~/vectors", windows="C:\\data", dropout=0.1),
    }
    settings = plain_settings(cfg)
    assert settings["common"] == {"seed": 1}
    assert settings["checkpoint"] == {}
    assert settings["task"] == {"files": ["kept"], "ratio": "train/valid"}
    assert settings["model"] == {"dropout": 0.1}


def test_settings_are_plain() -> None:
    cfg = {
        "optimizer": {"betas": (0.9, 0.98), "bound": float("inf"), "scale": torch.tensor([1, 2])},
        "model": {"kind": argparse.Namespace(a=1), "activation": print},
        "task": None,
    }
    settings = plain_settings(cfg)
    assert settings["optimizer"] == {"betas": [0.9, 0.98], "bound": "inf", "scale": [1, 2]}
    assert settings["model"] == {"kind": {"a": 1}, "activation": "builtin_function_or_method"}
    assert settings["task"] == {}
    json.dumps(settings, allow_nan=False)


def test_a_command_line_repeats_no_other_section() -> None:
    # fairseq-train stores all flags under model; with another value a key is the model's own.
    cfg = {
        "criterion": {"_name": "cross_entropy", "smoothing": 0.1},
        "optimization": {"lr": [0.1]},
        "model": argparse.Namespace(
            _name="norm_transformer",
            arch="norm_transformer",
            criterion="cross_entropy",
            smoothing=0.2,
            lr=[0.1],
            norm_type="rmsnorm",
        ),
    }
    assert plain_settings(cfg)["model"] == {
        "_name": "norm_transformer",
        "arch": "norm_transformer",
        "smoothing": 0.2,
        "norm_type": "rmsnorm",
    }


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path) -> Path:
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_checkout(checkout) -> None:
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert git_state(checkout / "package") == {"commit": commit, "dirty": False}


def test_results_text_and_tuning_do_not_make_a_checkout_dirty(checkout) -> None:
    for name in ("studies/a/runs.jsonl", "studies/b/tuned.json", "papers/a.py", "docs/a.svg"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("{}")
    (checkout / "README.md").write_text("new")
    (checkout / "study.tuned.json").write_text("{}")  # which the runs that follow name
    assert git_state(checkout / "package")["dirty"] is False


@pytest.mark.parametrize("name", ["package/code.py", "package/new_norm.py", "studies/study.yaml"])
def test_changed_or_new_code_is_dirty(checkout, name) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("2\n")
    assert git_state(checkout / "package")["dirty"] is True


def test_outside_a_checkout_nothing_is_known(checkout, tmp_path_factory) -> None:
    unknown = {"commit": None, "dirty": None}
    assert git_state(tmp_path_factory.mktemp("elsewhere")) == unknown
    installed = checkout / "venv" / "package"  # in somebody else's checkout, not tracked by it
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("1\n")
    assert git_state(installed) == unknown


def test_versions() -> None:
    stored = versions()
    assert stored["norm_plugin"] == norm_plugin.__version__
    assert stored["torch"] == torch.__version__
    assert {"python", "fairseq", "sacrebleu", "sacremoses"} <= stored.keys()


def test_the_code_that_mkl_takes_is_recorded(tmp_path: Path) -> None:
    library = tmp_path / "mkl.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    source = "int mkl_serv_intel_cpu_true(void) { return 1; }"
    subprocess.run(command, input=source, text=True, check=True)
    code = "from norm_lab.results.provenance import machine; print(machine(cpu=True))"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'mkl_as_on_intel': True" in finished.stdout


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="it may hold such a library")
def test_without_a_library_in_front_mkl_takes_its_own_code() -> None:
    assert machine(cpu=True)["mkl_as_on_intel"] is False
