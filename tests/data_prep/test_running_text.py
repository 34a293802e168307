"""The running texts of language models, on made-up archives of the original layout."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import enwik8
import ptb
import tinyshakespeare
import tinyshakespeare_halves
import wikitext103
from norm_plugin.commands.command_line import CommandError
from prep.files import SPLITS, lines_of, read_archive, write_lines
from prep.running_text import SPACE, TOKENS, ByteFile

TEXT = {"train": " the <unk> sat \n\n = N = \n", "valid": " the cat \n", "test": " a cat \n"}


def pack(corpus, folder, texts=TEXT):
    """The archive of a corpus of words, with these texts."""
    folder.mkdir()
    path = folder / corpus.raw.archive
    contents = {corpus.raw.members[split]: text.encode() for split, text in texts.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
        return folder
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"./{name}")  # as in Mikolov's
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


def with_lines(corpus, **lines):
    return replace(corpus, raw=replace(corpus.raw, lines=lines))


def words(corpus):
    return with_lines(corpus, train=3, valid=1, test=1)


@pytest.mark.parametrize("corpus", [ptb.CORPUS, wikitext103.CORPUS], ids=lambda c: c.name)
def test_words_are_taken_as_they_are(corpus, tmp_path, prepare):
    out = tmp_path / "out"
    manifest = prepare(words(corpus), pack(corpus, tmp_path / "raw"), out)
    assert list(lines_of(out / "tok/train.txt")) == ["the <unk> sat", "", "= N ="]
    assert list(lines_of(out / "tok/test.txt")) == ["a cat"]
    assert manifest["counts"]["tok"]["train.txt"] == {"lines": 3, "tokens": 6}
    assert (manifest["corpus"], manifest["settings"]) == (corpus.name, {"unit": "word"})
    assert list(manifest["inputs"]) == [corpus.raw.archive]
    assert set(manifest["files"]) == {*(f"tok/{x}.txt" for x in SPLITS), "bin/dict.txt"}
    # the files of the archive, lying beside each other, are as good
    loose = tmp_path / "loose"
    for split, name in corpus.raw.members.items():
        write_lines(loose / Path(name).name, TEXT[split].splitlines())
    again = prepare(words(corpus), loose, tmp_path / "again")
    assert again["checksum"] == manifest["checksum"]


@pytest.mark.parametrize("corpus", [ptb.CORPUS, wikitext103.CORPUS], ids=lambda c: c.name)
def test_another_text_is_refused(corpus, tmp_path, prepare):
    """Its lines are counted: those of WikiText-2 have the same names as those of WikiText-103."""
    raw = pack(corpus, tmp_path / "raw")
    with pytest.raises(CommandError, match="has 3 lines, and train of this corpus has .* another"):
        prepare(corpus, raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_of_another_corpus_is_refused(tmp_path, prepare):
    other = replace(wikitext103.CORPUS.raw, members={"train": "wikitext-2/wiki.train.tokens"})
    corpus = replace(wikitext103.CORPUS, raw=other)
    raw = pack(corpus, tmp_path / "raw", {"train": "a"})
    with pytest.raises(CommandError, match=r"lacks wikitext-103/wiki.* not the archive expected"):
        prepare(wikitext103.CORPUS, raw, tmp_path / "out")
    with pytest.raises(CommandError, match="lacks ptb.train.txt, .*; simple-examples.tgz would do"):
        prepare(ptb.CORPUS, raw, tmp_path / "out")


def test_a_damaged_zip_is_refused(tmp_path):
    raw = pack(wikitext103.CORPUS, tmp_path / "raw")
    path = raw / wikitext103.ARCHIVE
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(CommandError, match="truncated or damaged"):
        read_archive(path)
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 0xFF]) + whole[61:])
    with pytest.raises(CommandError, match="damaged"):
        read_archive(path)


# ---- bytes ----------------------------------------------------------------------------------


def test_the_token_of_a_byte():
    assert len(set(TOKENS)) == 256
    assert [TOKENS[byte] for byte in b"a <\t"] == ["a", SPACE, "<", "<09>"]
    assert "".join(TOKENS[byte] for byte in "ö".encode()) == "<c3><b6>"
    assert not any(set(token) & set(" \n\r\t") for token in TOKENS)


@pytest.mark.parametrize("packed", [True, False])
def test_enwik8_is_cut_at_bytes(packed, tmp_path, prepare):
    text = b"<mediawiki a\n\xc3\xb6 b\ncd\nef"
    raw = tmp_path / "raw"
    raw.mkdir()
    if packed:
        with zipfile.ZipFile(raw / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", text)
    else:
        (raw / "enwik8").write_bytes(text)
    sizes = {"train": 15, "valid": 4, "test": 4}
    corpus = replace(enwik8.CORPUS, raw=replace(enwik8.CORPUS.raw, sizes=sizes))
    prepare(corpus, raw, tmp_path / "out")
    found = {split: list(lines_of(tmp_path / f"out/tok/{split}.txt")) for split in SPLITS}
    assert found == {
        "train": [f"< m e d i a w i k i {SPACE} a", "<c3> <b6>"],
        "valid": [f"{SPACE} b", "c"],
        "test": ["d", "e f"],
    }
    sizes["test"] = 5
    with pytest.raises(CommandError, match="has 23 bytes .* enwik8 has 24 and begins with"):
        prepare(corpus, raw, tmp_path / "other")


def test_tinyshakespeare_is_nanogpts_split():
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), "tinyshakespeare")
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with tinyshakespeare/ in it")
    raw = tinyshakespeare.CORPUS.raw
    paths = {"input.txt": folder / "input.txt"}
    text = (folder / "input.txt").read_bytes()
    assert raw.sizes["train"] == int(0.9 * len(text))
    lines = {split: list(raw.read(paths, split)) for split in SPLITS}
    # each byte is a token, but for those of the end of a line
    tokens = [len(line.split()) + 1 for line in lines["train"]]
    assert sum(tokens) == raw.sizes["train"] + (text[raw.sizes["train"] - 1 :][:1] != b"\n")
    assert lines["test"] == lines["valid"]
    assert sum(len(line.split()) + 1 for line in lines["valid"]) == raw.sizes["valid"]

    halves = {split: list(tinyshakespeare_halves.CORPUS.raw.read(paths, split)) for split in SPLITS}
    assert halves["train"] == lines["train"]
    both = f"{halves['valid'].pop()} {halves['test'].pop(0)}"  # the middle lies within a line
    assert [*halves["valid"], both, *halves["test"]] == lines["valid"]


def test_wikitext_2_has_its_published_number_of_words():
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), "wikitext-2")
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with wikitext-2/ in it")
    raw = replace(wikitext103.CORPUS.raw, lines={})
    for split, published in {"valid": 217646, "test": 245569}.items():
        lines = raw.read({raw.members[split]: folder / f"wiki.{split}.tokens"}, split)
        assert sum(len(line.split()) + 1 for line in lines) == published


def test_a_byte_file_of_another_size_or_beginning_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"b123")
    for sizes, begins in (({"train": 4}, b"a"), ({"train": 5}, b"b")):
        raw = ByteFile("a.txt", sizes, begins=begins)
        with pytest.raises(CommandError, match="begins with b'b'?.* another corpus"):
            list(raw.read({"a.txt": tmp_path / "a.txt"}, "train"))
