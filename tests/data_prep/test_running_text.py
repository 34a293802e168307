"""The running texts of language models, on made-up archives of the original layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import enwik8
import ptb
import tinyshakespeare
import tinyshakespeare_halves
import wikitext2
import wikitext103
from norm_plugin.io.command_line import CommandError
from prep.files import SPLITS
from prep.running_text import SPACE, TOKENS, ByteFile

TEXT = {"train": " the <unk> sat \n\n = N = \n", "valid": " the cat \n", "test": " a cat \n"}


@pytest.mark.parametrize(
    "corpus", [ptb.CORPUS, wikitext2.CORPUS, wikitext103.CORPUS], ids=lambda c: c.name
)
def test_words_are_taken_as_they_are(corpus, tmp_path, prepare, pack, lines):
    members, out = corpus.raw.members, tmp_path / "out"
    dot = "./" if corpus is ptb.CORPUS else ""  # as in Mikolov's
    contents = {f"{dot}{members[split]}": text for split, text in TEXT.items()}
    raw = pack(tmp_path / "raw" / corpus.raw.archive, contents).parent
    # The lines are counted: those of WikiText-2 have the same names as those of WikiText-103.
    with pytest.raises(CommandError, match="train.* has 3 lines, but the published one has"):
        prepare(corpus, raw, tmp_path / "out")
    assert not out.exists()
    corpus = replace(corpus, raw=replace(corpus.raw, lines={"train": 3, "valid": 1, "test": 1}))
    manifest = prepare(corpus, raw, out)
    assert lines(out, "tok/train.txt") == ["the <unk> sat", "", "= N ="]
    assert lines(out, "tok/test.txt") == ["a cat"]
    assert manifest["counts"]["tok"]["train.txt"] == {"lines": 3, "tokens": 6}
    assert (manifest["corpus"], manifest["settings"]) == (corpus.name, {"unit": "word"})
    assert list(manifest["inputs"]) == [corpus.raw.archive]
    assert set(manifest["files"]) == {*(f"tok/{x}.txt" for x in SPLITS), "bin/dict.txt"}
    # the files of the archive, lying beside each other, are as good
    loose = tmp_path / "loose"
    loose.mkdir()
    for split, name in members.items():
        (loose / Path(name).name).write_text(TEXT[split])
    assert prepare(corpus, loose, tmp_path / "again")["checksum"] == manifest["checksum"]


# ---- bytes ----------------------------------------------------------------------------------


def test_the_token_of_a_byte():
    assert len(set(TOKENS)) == 256
    assert [TOKENS[byte] for byte in b"a <\t"] == ["a", SPACE, "<", "<09>"]
    assert "".join(TOKENS[byte] for byte in "ö".encode()) == "<c3><b6>"
    assert not any(set(token) & set(" \n\r\t") for token in TOKENS)


@pytest.mark.parametrize("packed", [True, False])
def test_enwik8_is_cut_at_bytes(packed, tmp_path, prepare, pack, lines):
    text, raw = b"<mediawiki a\n\xc3\xb6 b\ncd\nef", tmp_path / "raw"
    raw.mkdir()
    if packed:
        pack(raw / "enwik8.zip", {"enwik8": text})
    else:
        (raw / "enwik8").write_bytes(text)
    sizes = {"train": 15, "valid": 4, "test": 4}
    corpus = replace(enwik8.CORPUS, raw=replace(enwik8.CORPUS.raw, sizes=sizes))
    prepare(corpus, raw, tmp_path / "out")
    assert {split: lines(tmp_path / "out", f"tok/{split}.txt") for split in SPLITS} == {
        "train": [f"< m e d i a w i k i {SPACE} a", "<c3> <b6>"],
        "valid": [f"{SPACE} b", "c"],
        "test": ["d", "e f"],
    }


@pytest.mark.parametrize(
    ("sizes", "begins", "message"),
    [
        ({"train": 5}, b"b", r"a\.txt has 4 bytes, but the published one has 5"),
        ({"train": 4}, b"a", r"a\.txt begins with b'b', not with b'a'"),
    ],
)
def test_a_byte_file_of_another_size_or_beginning_is_refused(tmp_path, sizes, begins, message):
    (tmp_path / "a.txt").write_bytes(b"b123")
    raw = ByteFile("a.txt", sizes, begins=begins)
    with pytest.raises(CommandError, match=message):
        list(raw.read({"a.txt": tmp_path / "a.txt"}, "train"))


def test_tinyshakespeare_is_nanogpts_split(real):
    path = real("tinyshakespeare") / "input.txt"
    raw, text = tinyshakespeare.CORPUS.raw, path.read_bytes()
    assert raw.sizes["train"] == int(0.9 * len(text))
    lines = {split: list(raw.read({"input.txt": path}, split)) for split in SPLITS}
    # each byte is a token, but for those of the end of a line
    tokens = [len(line.split()) + 1 for line in lines["train"]]
    assert sum(tokens) == raw.sizes["train"] + (text[raw.sizes["train"] - 1 :][:1] != b"\n")
    assert lines["test"] == lines["valid"]
    assert sum(len(line.split()) + 1 for line in lines["valid"]) == raw.sizes["valid"]

    raw = tinyshakespeare_halves.CORPUS.raw
    halves = {split: list(raw.read({"input.txt": path}, split)) for split in SPLITS}
    assert halves["train"] == lines["train"]
    both = f"{halves['valid'].pop()} {halves['test'].pop(0)}"  # the middle lies within a line
    assert [*halves["valid"], both, *halves["test"]] == lines["valid"]


def test_wikitext_2_has_its_published_number_of_words(real):
    folder, raw = real("wikitext-2"), replace(wikitext103.CORPUS.raw, lines={})
    for split, published in {"valid": 217646, "test": 245569}.items():
        lines = raw.read({raw.members[split]: folder / f"wiki.{split}.tokens"}, split)
        assert sum(len(line.split()) + 1 for line in lines) == published
