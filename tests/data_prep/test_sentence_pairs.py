"""Pairs of sentences with a label, as in GLUE: RTE and MRPC on tiny stand-ins."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import pytest

import mrpc
import rte
from prep import labeled
from prep.labeled import parse_args, run_stages
from prep.messages import PrepError

LINES = {"train": 3, "valid": 2}
ROWS = {
    rte: ["0\tIt isn't well-known.\tIt's \"new\".\tentailment", "1\tA b.\tC d.\tnot_entailment"],
    mrpc: ["1\t7\t8\tIt isn't well-known.\tIt's \"new\".", "0\t7\t9\tA b.\tC d."],
}
HEADINGS = {
    rte: "index\tsentence1\tsentence2\tlabel",
    mrpc: "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",  # it begins with Windows' mark
}


@pytest.fixture(autouse=True)
def no_dictionary(monkeypatch):
    """fairseq takes seconds to import, and another test looks at what it makes."""

    def write(texts, destination, least_count):
        destination.write_text(" ".join(text.name for text in texts))

    monkeypatch.setattr(labeled, "make_word_dictionary", write)


def write_tables(folder, module, change=lambda text: text):
    folder.mkdir(exist_ok=True)
    for name, count in (("train", LINES["train"]), ("dev", LINES["valid"])):
        rows = [HEADINGS[module], *(ROWS[module] * count)[:count]]
        (folder / f"{name}.tsv").write_text(change("".join(f"{row}\n" for row in rows)))
    return folder


def prepare(module, raw, out, *words):
    corpus = replace(module.CORPUS, raw=replace(module.CORPUS.raw, lines=LINES))
    command = ["--raw", str(raw), "--out", str(out), "--only", "prepare", *map(str, words)]
    run_stages(corpus, parse_args(corpus, None, command))
    return json.loads((out / "manifest.json").read_text())


def lines(out, name):
    return (out / "tok" / name).read_text().splitlines()


@pytest.mark.parametrize("module", [rte, mrpc])
def test_both_sentences_are_tokenized_like_wikitext(module, tmp_path):
    manifest = prepare(module, write_tables(tmp_path / "raw", module), tmp_path / "out")
    out, (no, yes) = tmp_path / "out", module.CORPUS.labels
    known, new = "It isn 't well @-@ known .", 'It \'s " new " .'
    assert lines(out, "train.input0") == [known, "A b .", known]
    assert lines(out, "train.input1") == [new, "C d .", new]
    assert lines(out, "train.label") == [yes, no, yes]
    for side in ("input0", "input1", "label"):  # the labels of GLUE's test set are not published
        assert lines(out, f"test.{side}") == lines(out, f"valid.{side}") != []
    assert {f"tok/valid.{side}" for side in ("input0", "input1", "label")} < set(manifest["files"])
    for side in ("input0", "input1"):
        assert (out / "bin" / side / "dict.txt").read_text() == "train.input0 train.input1"


def test_the_archive_gives_the_same_data(tmp_path):
    tables = write_tables(tmp_path / "raw", rte)
    checksum = prepare(rte, tables, tmp_path / "plain")["checksum"]
    archived = tmp_path / "archived"
    archived.mkdir()
    with zipfile.ZipFile(archived / rte.ARCHIVE, "w") as packed:
        for table in sorted(tables.iterdir()):
            packed.write(table, f"RTE/{table.name}")
    assert prepare(rte, archived, tmp_path / "zip")["checksum"] == checksum


def test_the_dictionary_of_a_pretrained_model(tmp_path):
    raw, dictionary = write_tables(tmp_path / "raw", rte), tmp_path / "dict.txt"
    dictionary.write_text("It 7\nwell 3\nmadeupword0000 0\n")
    manifest = prepare(rte, raw, tmp_path / "out", "--dictionary", dictionary)
    for side in ("input0", "input1"):
        made = tmp_path / "out" / "bin" / side / "dict.txt"
        assert made.read_bytes() == dictionary.read_bytes()
    own = prepare(rte, raw, tmp_path / "own")
    assert "dictionary" in manifest["settings"] and "dictionary" not in own["settings"]
    assert manifest["checksum"] != own["checksum"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"--dictionary is .*dict\.txt, which is no file"),
        ("", r"dict\.txt is empty"),
        ("It 7\nwell\n", r"dict\.txt, line 2, is 'well', not a word and a count"),
    ],
)
def test_what_is_no_dictionary(text, message, tmp_path):
    raw, dictionary = write_tables(tmp_path / "raw", rte), tmp_path / "dict.txt"
    if text is not None:
        dictionary.write_text(text)
    with pytest.raises(PrepError, match=message):
        prepare(rte, raw, tmp_path / "out", "--dictionary", dictionary)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["fetch", "prepare"])
def test_a_corpus_that_cannot_be_downloaded_says_so(stage, tmp_path):
    command = ["--out", str(tmp_path / "out"), "--only", stage]
    with pytest.raises(PrepError, match="cannot be downloaded; pass the folder .* as --raw DIR"):
        run_stages(mrpc.CORPUS, parse_args(mrpc.CORPUS, None, command))
    assert not list(tmp_path.iterdir())


def test_binarizing_needs_no_raw_files(tmp_path):
    command = ["--out", str(tmp_path / "out"), "--only", "binarize"]
    with pytest.raises(PrepError, match="out holds no prepared text to binarize"):
        run_stages(mrpc.CORPUS, parse_args(mrpc.CORPUS, None, command))


def test_a_table_that_windows_wrote(tmp_path):
    checksum = prepare(mrpc, write_tables(tmp_path / "raw", mrpc), tmp_path / "out")["checksum"]
    windows = write_tables(tmp_path / "windows", mrpc)
    for table in windows.iterdir():
        table.write_bytes(table.read_bytes().replace(b"\n", b"\r\n"))
    assert prepare(mrpc, windows, tmp_path / "same")["checksum"] == checksum


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "sentence2",
            "question",
            r"train\.tsv in .* has no column sentence2; it is another corpus",
        ),
        (
            "1\tA b.\tC d.\tnot_entailment\n",
            "",
            r"train\.tsv .* has 2 pairs, and the published file has 3",
        ),
        ("\tA b.", "", r"line 3, has 3 columns, and its heading 4"),
        ("C d.", " ", r"line 3, has an empty sentence"),
        ("not_entailment", "neutral", r"line 3, has the label 'neutral'; the labels are not_"),
    ],
)
def test_what_a_table_may_not_hold(old, new, message, tmp_path):
    raw = write_tables(tmp_path / "raw", rte, lambda text: text.replace(old, new))
    with pytest.raises(PrepError, match=message):
        prepare(rte, raw, tmp_path / "out")
