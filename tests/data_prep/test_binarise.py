"""The dictionaries and the binary text are those of fairseq-preprocess in one go."""

from __future__ import annotations

import subprocess
import sys

import pytest

import binarise
import steps
from steps import SPLITS, PrepError


@pytest.fixture
def text(tmp_path):
    for language, line in (("en", "b a a"), ("de", "c b b \u0141")):
        for split in SPLITS:
            steps.write_lines(tmp_path / f"{split}.{language}", [line, f"{split} x", "a"])
    return tmp_path


def preprocess(text, *options):
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "-s", "en", "-t", "de", *options]
    command += ["--destdir", "whole", *[f"--{split}pref={split}" for split in SPLITS]]
    subprocess.run(command, cwd=text, check=True, capture_output=True)
    (text / "whole" / "preprocess.log").unlink()
    return {path.name: path.read_bytes() for path in (text / "whole").iterdir()}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_halves_are_one_whole(text):
    binarise.make_dictionaries(text, text / "dict", "en", "de", False, 1)
    binarise.binarise(text, text / "dict", text / "bin", "en", "de", False, 1)
    whole = preprocess(text)
    assert contents(text / "bin") == whole
    assert len(whole) == 14
    assert whole["dict.en.txt"] != whole["dict.de.txt"]


def test_joint_dictionary(text):
    binarise.make_dictionaries(text, text / "dict", "en", "de", True, 1)
    assert contents(text / "dict") == preprocess(text, "--joined-dictionary", "--dict-only")


def test_it_says_why_fairseq_failed(tmp_path):
    with pytest.raises(PrepError, match=r"fairseq-preprocess ended with 1: .*dict\.en\.txt"):
        binarise.binarise(tmp_path, tmp_path / "none", tmp_path / "bin", "en", "de", True, 1)
