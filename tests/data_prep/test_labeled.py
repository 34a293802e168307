"""Labeled sentences and pairs of sentences: tiny made-up corpora, their errors, and real ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import mrpc
import rt_polarity
import rte
import sst5
from norm_plugin.io.command_line import CommandError

SIZES = {"train": 14, "valid": 3, "test": 3}
RT = replace(rt_polarity.CORPUS, raw=replace(rt_polarity.CORPUS.raw, lines=10, sizes=SIZES))
LINES = {"train": 10, "valid": 5, "test": 5}
SST5 = replace(sst5.CORPUS, raw=replace(sst5.CORPUS.raw, lines=LINES))


@pytest.fixture
def rt(tmp_path):
    folder = tmp_path / "rt"
    folder.mkdir()
    for name in ("neg", "pos"):
        text = "".join(f"a {name} caf\xe9 – hmm… , Film {number} \n" for number in range(10))
        (folder / f"rt-polarity.{name}").write_bytes(text.encode("cp1252"))
    return folder


@pytest.fixture
def archived(rt, tmp_path, pack):
    """The folder of an archive with the files of `rt`."""
    members = rt_polarity.CORPUS.raw.members.values()
    contents = {name: (rt / Path(name).name).read_bytes() for name in members}
    return pack(tmp_path / "archived" / rt_polarity.ARCHIVE, contents).parent


@pytest.fixture
def sst(tmp_path):
    folder = tmp_path / "sst"
    folder.mkdir()
    for split, count in LINES.items():
        text = "".join(f"{number % 5} a Film of {number}\n" for number in range(count))
        (folder / sst5.NAMES[split]).write_text(text)
    return folder


@pytest.fixture
def examples(lines):
    """Every sentence with its label, by split."""

    def run(out):
        return {
            split: list(zip(lines(out, f"tok/{split}.input0"), lines(out, f"tok/{split}.label")))
            for split in SIZES
        }

    return run


def test_rt_is_split_by_its_seed(rt, tmp_path, prepare, examples, capsys):
    manifest = prepare(RT, rt, tmp_path / "first", "--split-seed", 7)
    splits = examples(tmp_path / "first")
    assert {split: len(part) for split, part in splits.items()} == SIZES
    assert len({pair for part in splits.values() for pair in part}) == 20  # none is in two splits
    for sentence, label in splits["train"]:
        assert ("neg" in sentence) == (label == "0")
        assert "café – hmm… , film" in sentence
    assert manifest["settings"]["split_seed"] == 7
    again = prepare(RT, rt, tmp_path / "again", "--split-seed", 7)
    other = prepare(RT, rt, tmp_path / "other", "--split-seed", 8)
    assert again["checksum"] == manifest["checksum"] != other["checksum"]
    assert examples(tmp_path / "other") != splits
    with pytest.raises(SystemExit):
        RT.run(["--out", "out", "--split-seed", "-7"])
    assert "argument --split-seed: '-7' is not an integer of 0 or more" in capsys.readouterr().err


def test_a_copy_in_utf8_and_the_archive_give_the_same_data(rt, archived, tmp_path, prepare):
    checksum = prepare(RT, rt, tmp_path / "plain")["checksum"]
    for path in rt.iterdir():
        path.write_text(path.read_bytes().decode("cp1252"), encoding="utf-8")
    assert prepare(RT, rt, tmp_path / "utf8")["checksum"] == checksum
    assert prepare(RT, archived, tmp_path / "tar")["checksum"] == checksum


def test_byte_order_marks_change_no_text(rt, sst, marked, tmp_path, prepare):
    for corpus, raw in ((RT, rt), (SST5, sst)):
        plain = prepare(corpus, raw, tmp_path / f"{corpus.name}-plain")
        other = prepare(corpus, marked(raw), tmp_path / f"{corpus.name}-out")
        assert other["checksum"] == plain["checksum"]
        shutil.rmtree(tmp_path / "marked")


def test_what_is_prepared_needs_its_raw_files_no_more(archived, tmp_path, capsys, prepare):
    prepare(RT, archived, tmp_path / "tar")
    capsys.readouterr()
    RT.run(["--out", str(tmp_path / "tar")])
    assert capsys.readouterr().err.count("nothing to do") == 2


def test_sst5_has_its_own_split(sst, tmp_path, prepare, examples, lines):
    out = tmp_path / "out"
    manifest = prepare(SST5, sst, out)
    assert examples(out)["test"] == [(f"a film of {n}", str(n)) for n in range(5)]
    settings = {"labels": list("01234"), "lowercase": True, "least_count": 2}
    assert manifest["settings"] == settings
    # A word that occurs once is unknown.
    assert lines(out, "bin/input0/dict.txt")[:3] == ["a 10", "film 10", "of 10"]
    assert lines(out, "bin/label/dict.txt") == ["0 1", "1 1", "2 1", "3 1", "4 1"]


@pytest.mark.parametrize(
    ("module", "name", "sizes"),
    [
        (rt_polarity, "rt-polarity", {"train": 8608, "valid": 964, "test": 1089}),
        (sst5, "sst5", {"train": 8544, "valid": 1101, "test": 2210}),
    ],
)
def test_the_real_corpus(module, name, sizes, tmp_path, prepare, real, examples):
    prepare(module.CORPUS, real(name), tmp_path / "out")
    splits = examples(tmp_path / "out")
    assert {split: len(part) for split, part in splits.items()} == sizes
    labels = {label for part in splits.values() for _, label in part}
    assert labels == set(module.CORPUS.labels)


# ---- pairs of sentences with a label, as in GLUE ------------------------------------------------

PAIRS = {"train": 3, "valid": 2}
ROWS = {
    rte: ["0\tIt isn't well-known.\tIt's \"new\".\tentailment", "1\tA b.\tC d.\tnot_entailment"],
    mrpc: ["1\t7\t8\tIt isn't well-known.\tIt's \"new\".", "0\t7\t9\tA b.\tC d."],
}
HEADINGS = {
    rte: "index\tsentence1\tsentence2\tlabel",
    mrpc: "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",  # it begins with Windows' mark
}
RTE, MRPC = (
    replace(module.CORPUS, raw=replace(module.CORPUS.raw, lines=PAIRS)) for module in (rte, mrpc)
)


def write_tables(folder, module, newline="\n"):
    folder.mkdir()
    for name, count in (("train", PAIRS["train"]), ("dev", PAIRS["valid"])):
        rows = [HEADINGS[module], *(ROWS[module] * count)[:count]]
        text = "".join(f"{row}{newline}" for row in rows)
        (folder / f"{name}.tsv").write_text(text, newline="")
    return folder


@pytest.mark.parametrize(("module", "corpus"), [(rte, RTE), (mrpc, MRPC)])
def test_both_sentences_are_tokenized_like_wikitext(module, corpus, tmp_path, prepare, lines):
    out, (no, yes) = tmp_path / "out", corpus.labels
    manifest = prepare(corpus, write_tables(tmp_path / "raw", module), out)
    first, second = "It isn 't well @-@ known .", 'It \'s " new " .'
    assert lines(out, "tok/train.input0") == [first, "A b .", first]
    assert lines(out, "tok/train.input1") == [second, "C d .", second]
    assert lines(out, "tok/train.label") == [yes, no, yes]
    for side in ("input0", "input1", "label"):  # the labels of GLUE's test set are not published
        assert lines(out, f"tok/test.{side}") == lines(out, f"tok/valid.{side}") != []
    assert {f"tok/valid.{side}" for side in ("input0", "input1", "label")} < set(manifest["files"])
    for side in ("input0", "input1"):  # of the words of both
        assert {"known 2", "new 2"} <= set(lines(out, f"bin/{side}/dict.txt"))
    windows = write_tables(tmp_path / "win", module, newline="\r\n")
    assert prepare(corpus, windows, tmp_path / "same")["checksum"] == manifest["checksum"]


def test_the_dictionary_of_a_pretrained_model(tmp_path, prepare):
    raw, dictionary = write_tables(tmp_path / "raw", rte), tmp_path / "dict.txt"
    dictionary.write_text("It 7\nwell 3\nmadeupword0000 0\n")
    manifest = prepare(RTE, raw, tmp_path / "out", "--dictionary", dictionary)
    for side in ("input0", "input1"):
        copied = tmp_path / "out" / "bin" / side / "dict.txt"
        assert copied.read_bytes() == dictionary.read_bytes()
    own = prepare(RTE, raw, tmp_path / "own")
    assert "dictionary" in manifest["settings"] and "dictionary" not in own["settings"]
    assert manifest["checksum"] != own["checksum"]
    dictionary.write_text("It 7\nwell\n")
    with pytest.raises(CommandError, match="cannot read the dictionary .*: Incorrect dict"):
        prepare(RTE, raw, tmp_path / "other", "--dictionary", dictionary)


def test_a_corpus_that_cannot_be_downloaded_says_so(tmp_path):
    with pytest.raises(CommandError, match="cannot be downloaded; pass the folder .* --raw"):
        mrpc.CORPUS.run(["--out", str(tmp_path / "out")])


# ---- errors -------------------------------------------------------------------------------------

FILM_3 = "a neg caf\xe9 – hmm… , Film 3 ".encode("cp1252")
NEG, DEV, TRAIN = "rt/rt-polarity.neg", "sst/stsa.fine.dev", "rte/train.tsv"


@pytest.mark.parametrize(
    ("corpus", "name", "old", "new", "message"),
    [
        (RT, NEG, b"", b"more\n", r"rt-polarity\.neg has 11 lines, but the published one has 10"),
        (RT, NEG, FILM_3, b" ", r"rt-polarity\.neg, line 4, has an empty sentence"),
        (
            RT,
            NEG,
            b"Film 3",
            b"Film \x81",
            r"the encoding of rt-polarity\.neg is none of UTF-8, cp1252",
        ),
        (
            SST5,
            DEV,
            b"4 a",
            b"7 a",
            r"dev, line 5, has the label '7'; the labels are 0, 1, 2, 3, 4",
        ),
        (SST5, DEV, b"4 a Film of 4", b"4  ", r"fine\.dev, line 5, has an empty sentence"),
        (SST5, DEV, b"4 a", b"4 b\n4 a", r"dev has 6 lines, but the published one has 5"),
        (
            RTE,
            TRAIN,
            b"sentence2",
            b"question",
            r"is not the expected table: .*sentence2.* not in index",
        ),
        (RTE, TRAIN, b"1\tA b.\tC d.\tnot_entailment\n", b"", r"has 2 pairs, but the published"),
        (
            RTE,
            TRAIN,
            b"\tA b.",
            b"\tA b.\tmore",
            r"is not the expected table: .* Expected 4 fields",
        ),
        (RTE, TRAIN, b"\tA b.", b"", r"line 3, has the label ''"),
        (RTE, TRAIN, b"C d.", b" ", r"line 3, has an empty sentence"),
        (RTE, TRAIN, b"not_ent", b"no ent", r"line 3, has the label 'no ent.*the labels are not_"),
    ],
)
def test_what_is_refused(rt, sst, tmp_path, prepare, corpus, name, old, new, message):
    write_tables(tmp_path / "rte", rte)
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(CommandError, match=message):
        prepare(corpus, path.parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()
