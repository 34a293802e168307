"""Dictionaries and binary text are fairseq-preprocess's; bin/ is complete or made again."""

from __future__ import annotations

import json
import os
import sys
from functools import partial

import pytest

from prep import binarize, folder
from prep.files import SPLITS, write_lines

SPEC = folder.make_data_spec("tiny", "en", "de", {})
EACH = ("en", "de")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def texts(end="x"):
    return {
        f"{split}.{language}": [line, f"{split} {end}", "a"]
        for language, line in (("en", "b a a"), ("de", "c b b \u0141"))
        for split in SPLITS
    }


def build(work, groups=(EACH,), end="x"):
    for name, lines in texts(end).items():
        write_lines(work / "tok" / name, lines)
    for languages in groups:
        train = [work / "tok" / f"train.{language}" for language in languages]
        binarize.make_dictionary(train, [work / "bin" / f"dict.{x}.txt" for x in languages])
    return {}


@pytest.fixture
def prepared(tmp_path):
    folder.publish(tmp_path / "out", SPEC, build, overwrite=False)
    return tmp_path / "out"


def never(*args):
    raise AssertionError("made again")


# ---- as fairseq ---------------------------------------------------------------------------------


@pytest.fixture
def preprocess(tmp_path, monkeypatch):
    """Runs fairseq-preprocess here, which has paid for importing it; returns what it makes."""
    fairseq = pytest.importorskip("fairseq_cli.preprocess")

    def run(*options):
        for name, lines in texts().items():
            write_lines(tmp_path / name, lines)
        command = ["preprocess", "-s", "en", "-t", "de", *options, "--destdir", "whole"]
        command += [f"--{split}pref={split}" for split in SPLITS]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.chdir(tmp_path)
        fairseq.cli_main()
        return {k: v for k, v in contents(tmp_path / "whole").items() if k != "preprocess.log"}

    before = fairseq.logger.handlers[:]
    yield run
    for handler in [each for each in fairseq.logger.handlers if each not in before]:
        fairseq.logger.removeHandler(handler)
        handler.close()


@pytest.mark.parametrize("joint", [False, True])
def test_two_halves_are_what_fairseq_preprocess_makes(tmp_path, preprocess, joint):
    whole = preprocess(*["--joined-dictionary"] * joint)
    groups = [EACH] if joint else [["en"], ["de"]]
    folder.publish(tmp_path / "out", SPEC, partial(build, groups=groups), overwrite=False)
    binarize.publish_binary(tmp_path / "out", overwrite=False)
    made = contents(tmp_path / "out/bin")
    record = json.loads(made.pop("binarized.json"))
    assert made == whole and len(whole) == 14
    assert set(record["files"]) == {name for name in whole if not name.startswith("dict.")}
    assert (whole["dict.en.txt"] == whole["dict.de.txt"]) == joint


def test_rare_words_and_those_that_fill_up_are_no_types(prepared, capsys):
    path = prepared / "dict.txt"
    binarize.make_dictionary([prepared / "tok/train.en"], [path], least_count=2)
    assert "dictionary of train.en: 1 types" in capsys.readouterr().err  # a
    assert len(path.read_text().splitlines()) > 1


@pytest.mark.parametrize(
    ("layout", "target", "sides", "stem"),
    [
        ("sentence_prediction", "label", ["input0", "label"], "label/train"),
        ("language_modeling", None, ["input0"], "train"),
    ],
)
def test_other_tasks_have_their_layout(tmp_path, layout, target, sides, stem):
    from fairseq.data import Dictionary, data_utils

    spec = folder.make_data_spec("tiny", "input0", target, {}, layout=layout)
    dictionary = folder.dictionary(spec, sides[-1])

    def build(work):
        for side in sides:
            for split in SPLITS:
                write_lines(work / "tok" / f"{split}.{side}", ["a b", "a c a"])
            # fairseq writes a dictionary without this flag, and then cannot read it again.
            words = ["a 3", "<s> 2 #fairseq:overwrite", "b 1"]
            write_lines(work / "bin" / folder.dictionary(spec, side), words)
        return {}

    folder.publish(tmp_path / "out", spec, build, overwrite=False)
    binarize.publish_binary(tmp_path / "out", overwrite=False)
    known = Dictionary.load(str(tmp_path / "out/bin" / dictionary))
    data = data_utils.load_indexed_dataset(str(tmp_path / "out/bin" / stem), known)
    a, b, end = known.index("a"), known.index("b"), known.eos()
    assert [line.tolist() for line in data] == [[a, b, end], [a, known.unk(), a, end]]


# ---- complete or made again ---------------------------------------------------------------------


def test_binarizing_is_done_once_and_again_when_something_changed(prepared, monkeypatch, capsys):
    manifest = (prepared / "manifest.json").read_bytes()
    binarize.publish_binary(prepared, overwrite=False)
    assert (prepared / "manifest.json").read_bytes() == manifest
    made = contents(prepared / "bin")
    # A complete corpus is used where nothing can be written.
    lock = prepared.parent / ".out.lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened, not even by root
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(binarize, "binarize", never)
        folder.publish(prepared, SPEC, never, overwrite=False)
        binarize.publish_binary(prepared, overwrite=False)
    assert capsys.readouterr().err.count("nothing to do") == 2
    lock.rmdir()
    # A file of the same size and other content, as a failing disk leaves it.
    changed = prepared / "bin" / "test.en-de.en.bin"
    changed.write_bytes(b"y" * changed.stat().st_size)
    binarize.publish_binary(prepared, overwrite=False)
    assert contents(prepared / "bin") == made
    with monkeypatch.context() as patch:
        patch.setattr(binarize, "tool_versions", lambda: {"fairseq": "another"})
        binarize.publish_binary(prepared, overwrite=False)
    assert json.loads((prepared / "bin/binarized.json").read_text())["fairseq"] == "another"
    spec = {**SPEC, "settings": {"merges": 3}}
    folder.publish(prepared, spec, partial(build, end="a b"), overwrite=True)
    assert set(contents(prepared / "bin")) == {"dict.de.txt", "dict.en.txt"}
    binarize.publish_binary(prepared, overwrite=False)
    assert changed.read_bytes() != made[changed.name]
    assert {path.name for path in prepared.iterdir()} == {"bin", "manifest.json", "tok"}


def test_a_failure_while_binarizing_keeps_the_text_and_is_made_good(prepared, monkeypatch):
    write, replace = binarize.binarize_text, os.replace

    def full(text, dictionary, stem):
        write(text, dictionary, stem)
        if text.name == "test.de":
            raise OSError(28, "No space left on device")

    def stop(source, target):  # when some files are in their place
        if "test" in target.name:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(binarize, "binarize_text", full)
        with pytest.raises(OSError, match="No space left"):
            binarize.publish_binary(prepared, overwrite=False)
    assert {path.name for path in prepared.iterdir()} == {"bin", "manifest.json", "tok"}
    assert set(contents(prepared / "bin")) == {"dict.de.txt", "dict.en.txt"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            binarize.publish_binary(prepared, overwrite=False)
    binarize.publish_binary(prepared, overwrite=False)
    assert len(contents(prepared / "bin")) == 15
