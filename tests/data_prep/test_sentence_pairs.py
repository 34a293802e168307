"""Pairs of sentences with a label, as in GLUE: RTE and MRPC on tiny stand-ins."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import pytest

import mrpc
import rte
from norm_plugin.commands.command_line import CommandError

LINES = {"train": 3, "valid": 2}
ROWS = {
    rte: ["0\tIt isn't well-known.\tIt's \"new\".\tentailment", "1\tA b.\tC d.\tnot_entailment"],
    mrpc: ["1\t7\t8\tIt isn't well-known.\tIt's \"new\".", "0\t7\t9\tA b.\tC d."],
}
HEADINGS = {
    rte: "index\tsentence1\tsentence2\tlabel",
    mrpc: "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",  # it begins with Windows' mark
}


def write_tables(folder, module, change=lambda text: text):
    folder.mkdir(exist_ok=True)
    for name, count in (("train", LINES["train"]), ("dev", LINES["valid"])):
        rows = [HEADINGS[module], *(ROWS[module] * count)[:count]]
        (folder / f"{name}.tsv").write_text(change("".join(f"{row}\n" for row in rows)))
    return folder


@pytest.fixture
def prepare(prepare):
    def run(module, raw, out, *flags):
        corpus = replace(module.CORPUS, raw=replace(module.CORPUS.raw, lines=LINES))
        return prepare(corpus, raw, out, *flags)

    return run


def lines(out, name):
    return (out / "tok" / name).read_text().splitlines()


@pytest.mark.parametrize("module", [rte, mrpc])
def test_both_sentences_are_tokenized_like_wikitext(module, tmp_path, prepare):
    manifest = prepare(module, write_tables(tmp_path / "raw", module), tmp_path / "out")
    out, (no, yes) = tmp_path / "out", module.CORPUS.labels
    known, new = "It isn 't well @-@ known .", 'It \'s " new " .'
    assert lines(out, "train.input0") == [known, "A b .", known]
    assert lines(out, "train.input1") == [new, "C d .", new]
    assert lines(out, "train.label") == [yes, no, yes]
    for side in ("input0", "input1", "label"):  # the labels of GLUE's test set are not published
        assert lines(out, f"test.{side}") == lines(out, f"valid.{side}") != []
    assert {f"tok/valid.{side}" for side in ("input0", "input1", "label")} < set(manifest["files"])
    for side in ("input0", "input1"):  # of the words of both
        words = (out / "bin" / side / "dict.txt").read_text().splitlines()
        assert {"known 2", "new 2"} <= set(words)


def test_the_archive_gives_the_same_data(tmp_path, prepare):
    tables = write_tables(tmp_path / "raw", rte)
    checksum = prepare(rte, tables, tmp_path / "plain")["checksum"]
    archived = tmp_path / "archived"
    archived.mkdir()
    with zipfile.ZipFile(archived / rte.ARCHIVE, "w") as packed:
        for table in sorted(tables.iterdir()):
            packed.write(table, f"RTE/{table.name}")
    assert prepare(rte, archived, tmp_path / "zip")["checksum"] == checksum


def test_the_dictionary_of_a_pretrained_model(tmp_path, prepare):
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
def test_what_is_no_dictionary(text, message, tmp_path, prepare):
    raw, dictionary = write_tables(tmp_path / "raw", rte), tmp_path / "dict.txt"
    if text is not None:
        dictionary.write_text(text)
    with pytest.raises(CommandError, match=message):
        prepare(rte, raw, tmp_path / "out", "--dictionary", dictionary)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["fetch", "prepare"])
def test_a_corpus_that_cannot_be_downloaded_says_so(stage, tmp_path, prepare):
    command = ["--out", str(tmp_path / "out"), "--only", stage]
    with pytest.raises(CommandError, match="cannot be downloaded; pass the folder .* as --raw DIR"):
        mrpc.CORPUS.run(command)
    assert not list(tmp_path.iterdir())


def test_binarizing_needs_no_raw_files(tmp_path, prepare):
    command = ["--out", str(tmp_path / "out"), "--only", "binarize"]
    with pytest.raises(CommandError, match="out holds no prepared text to binarize"):
        mrpc.CORPUS.run(command)


def test_a_table_that_windows_wrote(tmp_path, prepare):
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
            r"train\.tsv has no column sentence2; it is another corpus",
        ),
        (
            "1\tA b.\tC d.\tnot_entailment\n",
            "",
            r"train\.tsv has 2 pairs, and the published file has 3",
        ),
        ("\tA b.", "", r"line 3, has 3 columns, and its heading 4"),
        ("C d.", " ", r"line 3, has an empty sentence"),
        ("not_entailment", "neutral", r"line 3, has the label 'neutral'; the labels are not_"),
    ],
)
def test_what_a_table_may_not_hold(old, new, message, tmp_path, prepare):
    raw = write_tables(tmp_path / "raw", rte, lambda text: text.replace(old, new))
    with pytest.raises(CommandError, match=message):
        prepare(rte, raw, tmp_path / "out")
