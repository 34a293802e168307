"""The dictionaries and the binary text are those of fairseq-preprocess in one go."""

from __future__ import annotations

import sys

import pytest

from prep import binarize, folder
from prep.files import SPLITS, write_lines


@pytest.fixture
def text(tmp_path):
    for language, line in (("en", "b a a"), ("de", "c b b \u0141")):
        for split in SPLITS:
            write_lines(tmp_path / f"{split}.{language}", [line, f"{split} x", "a"])
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


RECIPE = {"source": "en", "target": "de"}
EACH = ("en", "de")


def halves(text, groups):
    """A prepared corpus, and its binary form."""
    out, made = text / "out", text / "bin"
    for languages in groups:
        texts = [text / f"train.{language}" for language in languages]
        binarize.make_dictionary(texts, [out / "bin" / f"dict.{x}.txt" for x in languages])
    for split in SPLITS:
        for language in EACH:
            (out / "tok").mkdir(exist_ok=True)
            (text / f"{split}.{language}").rename(out / "tok" / f"{split}.{language}")
    binarize.binarize(out, made, RECIPE)
    return contents(out / "bin") | contents(made)


@pytest.mark.parametrize("joint", [False, True])
def test_two_halves_are_what_fairseq_preprocess_makes(text, preprocess, joint):
    whole = preprocess(*["--joined-dictionary"] * joint)
    assert halves(text, [EACH] if joint else [["en"], ["de"]]) == whole
    assert len(whole) == 14
    assert (whole["dict.en.txt"] == whole["dict.de.txt"]) == joint


def test_rare_words_and_those_that_fill_up_are_no_types(text, capsys):
    binarize.make_dictionary([text / "train.en"], [text / "dict.txt"], least_count=2)
    assert "dictionary of train.en: 1 types" in capsys.readouterr().err  # a
    assert len((text / "dict.txt").read_text().splitlines()) > 1


LABELED = {"source": "input0", "target": "label", "layout": "sentence_prediction"}
TEXT = {"source": "txt", "target": None, "layout": "language_modeling"}


@pytest.mark.parametrize(
    ("recipe", "sides", "stem"),
    [(LABELED, ["input0", "label"], "label/train"), (TEXT, ["txt"], "train")],
)
def test_other_tasks_have_their_layout(tmp_path, recipe, sides, stem):
    from fairseq.data import Dictionary, data_utils

    out, made = tmp_path / "out", tmp_path / "made"
    for side in sides:
        for split in SPLITS:
            write_lines(out / "tok" / f"{split}.{side}", ["a b", "a c a"])
        # fairseq writes a dictionary without this flag, and then cannot read it again.
        name = folder.dictionary(recipe, side)
        write_lines(out / "bin" / name, ["a 3", "<s> 2 #fairseq:overwrite", "b 1"])
    binarize.binarize(out, made, recipe)
    known = Dictionary.load(str(out / "bin" / folder.dictionary(recipe, sides[-1])))
    data = data_utils.load_indexed_dataset(str(made / stem), known)
    a, b, end = known.index("a"), known.index("b"), known.eos()
    assert [line.tolist() for line in data] == [[a, b, end], [a, known.unk(), a, end]]
