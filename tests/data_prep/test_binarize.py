"""The dictionaries and the binary text are those of fairseq-preprocess in one go."""

from __future__ import annotations

import sys

import pytest

from prep import binarize, text_files
from prep.text_files import SPLITS


@pytest.fixture
def text(tmp_path):
    for language, line in (("en", "b a a"), ("de", "c b b \u0141")):
        for split in SPLITS:
            text_files.write_lines(tmp_path / f"{split}.{language}", [line, f"{split} x", "a"])
    return tmp_path


@pytest.fixture
def preprocess(text, monkeypatch):
    """Runs fairseq-preprocess here, which has paid for importing it; returns what it makes."""
    fairseq = pytest.importorskip("fairseq_cli.preprocess")

    def run(*options):
        command = ["preprocess", "-s", "en", "-t", "de", *options, "--destdir", "whole"]
        command += [f"--{split}pref={split}" for split in SPLITS]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.chdir(text)
        fairseq.cli_main()
        return {k: v for k, v in contents(text / "whole").items() if k != "preprocess.log"}

    before = fairseq.logger.handlers[:]
    yield run
    for handler in [each for each in fairseq.logger.handlers if each not in before]:
        fairseq.logger.removeHandler(handler)
        handler.close()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_halves_are_one_whole(text, preprocess):
    binarize.make_dictionaries(text, text / "dict", "en", "de", False)
    binarize.binarize(text, text / "dict", text / "bin", "en", "de", False, 1)
    whole = preprocess()
    assert contents(text / "bin") == whole
    assert len(whole) == 14
    assert whole["dict.en.txt"] != whole["dict.de.txt"]


def test_joint_dictionary(text, preprocess):
    binarize.make_dictionaries(text, text / "dict", "en", "de", True)
    assert contents(text / "dict") == preprocess("--joined-dictionary", "--dict-only")


def test_rare_words_and_those_that_fill_up_are_no_types(text, capsys):
    binarize.make_word_dictionary([text / "train.en"], text / "dict.txt", least_count=2)
    assert "dictionary of train.en: 1 types" in capsys.readouterr().err  # a
    assert len((text / "dict.txt").read_text().splitlines()) > 1


def test_the_dictionary_of_a_model_keeps_its_flags(tmp_path, monkeypatch):
    def preprocess(options, destination, workers):
        destination.mkdir()
        (destination / "dict.txt").write_text("a 3\n<s> 2\n")  # as fairseq saves it

    monkeypatch.setattr(binarize, "_preprocess", preprocess)
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("a 3\n<s> 2 #fairseq:overwrite\n")
    binarize.binarize_side(tmp_path, dictionary, tmp_path / "bin", "input0", 1)
    assert (tmp_path / "bin" / "dict.txt").read_bytes() == dictionary.read_bytes()
