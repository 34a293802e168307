"""The running texts of language models, on made-up archives of the original layout."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import enwik8
import ptb
import tinyshakespeare
import wikitext103
from prep import archives, text_stages
from prep.messages import PrepError
from prep.running_text import SPACE, TOKENS, ByteFile
from prep.text_files import SPLITS, read_lines, write_lines
from prep.zips import check_zip

CORPORA = [enwik8.CORPUS, ptb.CORPUS, tinyshakespeare.CORPUS, wikitext103.CORPUS]
TEXT = {"train": " the <unk> sat \n\n = N = \n", "valid": " the cat \n", "test": " a cat \n"}


@pytest.fixture(autouse=True)
def no_dictionaries(monkeypatch):
    """fairseq takes seconds, and another test looks at what it makes."""

    def make(texts, destination, least_count):
        assert ([text.name for text in texts], least_count) == (["train.txt"], 1)
        write_lines(destination, [])

    monkeypatch.setattr(text_stages, "make_word_dictionary", make)


def prepare(corpus, raw, out, *more):
    command = ["--raw", str(raw), "--out", str(out), "--only", "prepare", "--workers", "1"]
    text_stages.run_stages(corpus, text_stages.parse_args(None, [*command, *more]))
    return json.loads((out / "manifest.json").read_text())


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


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.name)
def test_every_raw_file_can_be_downloaded(corpus, tmp_path):
    assert (Path(enwik8.__file__).parent / f"{corpus.name}.py").is_file()
    for source in corpus.sources:
        assert source.urls and all("://" in url for url in source.urls)
        (tmp_path / source.name).touch()
    assert {path.name for path in corpus.raw.inputs(tmp_path)} == {x.name for x in corpus.sources}


@pytest.mark.parametrize("corpus", [ptb.CORPUS, wikitext103.CORPUS], ids=lambda c: c.name)
def test_words_are_taken_as_they_are(corpus, tmp_path):
    out = tmp_path / "out"
    manifest = prepare(words(corpus), pack(corpus, tmp_path / "raw"), out)
    assert list(read_lines(out / "tok/train.txt")) == ["the <unk> sat", "", "= N ="]
    assert list(read_lines(out / "tok/test.txt")) == ["a cat"]
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
def test_another_text_is_refused(corpus, tmp_path):
    """Its lines are counted: those of WikiText-2 have the same names as those of WikiText-103."""
    raw = pack(corpus, tmp_path / "raw")
    with pytest.raises(PrepError, match="has 3 lines, and train of this corpus has .* another"):
        prepare(corpus, raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_of_another_corpus_is_refused(tmp_path):
    other = replace(wikitext103.CORPUS.raw, members={"train": "wikitext-2/wiki.train.tokens"})
    corpus = replace(wikitext103.CORPUS, raw=other)
    raw = pack(corpus, tmp_path / "raw", {"train": "a"})
    with pytest.raises(PrepError, match=r"lacks wikitext-103/wiki.* not the archive expected"):
        prepare(wikitext103.CORPUS, raw, tmp_path / "out")
    with pytest.raises(PrepError, match="has neither simple-examples.tgz nor ptb.train.txt"):
        prepare(ptb.CORPUS, raw, tmp_path / "out")


def test_a_damaged_zip_is_refused(tmp_path, monkeypatch):
    raw = pack(wikitext103.CORPUS, tmp_path / "raw")
    path = raw / wikitext103.ARCHIVE
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(PrepError, match="truncated or damaged"):
        check_zip(path)
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 0xFF]) + whole[61:])
    with pytest.raises(PrepError, match="damaged"):
        check_zip(path)
    path.write_bytes(whole)
    monkeypatch.setattr(archives, "SMALL_BYTES", 10)
    monkeypatch.setattr(archives, "MOST_RATIO", 0)
    with pytest.raises(PrepError, match="unpacks to more than"):
        check_zip(path)


# ---- bytes ----------------------------------------------------------------------------------


def test_the_token_of_a_byte():
    assert len(set(TOKENS)) == 256
    assert [TOKENS[byte] for byte in b"a <\t"] == ["a", SPACE, "<", "<09>"]
    assert "".join(TOKENS[byte] for byte in "ö".encode()) == "<c3><b6>"
    assert not any(set(token) & set(" \n\r\t") for token in TOKENS)


@pytest.mark.parametrize("packed", [True, False])
def test_enwik8_is_cut_at_bytes(packed, tmp_path):
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
    found = {split: list(read_lines(tmp_path / f"out/tok/{split}.txt")) for split in SPLITS}
    assert found == {
        "train": [f"< m e d i a w i k i {SPACE} a", "<c3> <b6>"],
        "valid": [f"{SPACE} b", "c"],
        "test": ["d", "e f"],
    }
    sizes["test"] = 5
    with pytest.raises(PrepError, match="holds 23 bytes .* enwik8 has 24 and begins with"):
        prepare(corpus, raw, tmp_path / "other")


def test_tinyshakespeare_is_nanogpts_split(tmp_path):
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), "tinyshakespeare")
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with tinyshakespeare/ in it")
    raw = tinyshakespeare.CORPUS.raw
    raw.check(folder)
    text = (folder / "input.txt").read_bytes()
    assert raw.sizes["train"] == int(0.9 * len(text))
    lines = {split: list(raw.read(folder, split)) for split in SPLITS}
    # each byte is a token, but for those of the end of a line
    tokens = [len(line.split()) + 1 for line in lines["train"]]
    assert sum(tokens) == raw.sizes["train"] + (text[raw.sizes["train"] - 1 :][:1] != b"\n")
    assert lines["test"] == lines["valid"]
    assert sum(len(line.split()) + 1 for line in lines["valid"]) == raw.sizes["valid"]


def test_wikitext_2_has_its_published_number_of_words():
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), "wikitext-2")
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip("NORM_DATA_DIR names no folder with wikitext-2/ in it")
    raw = wikitext103.CORPUS.raw
    for split, published in {"valid": 217646, "test": 245569}.items():
        lines = raw.read(folder, split)
        assert sum(len(line.split()) + 1 for line in lines) == published


def test_a_byte_file_that_ends_early_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"abc\nde")
    for split in ("train", "valid"):
        with pytest.raises(PrepError, match=f"text in .* ends within {split}"):
            list(ByteFile("text", {"train": 9, "valid": 1}).read(tmp_path, split))


def test_a_byte_file_without_its_beginning_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"b123")
    with pytest.raises(PrepError, match="begin with b'b'.* another corpus"):
        ByteFile("a.txt", {"train": 4}, begins=b"a").check(tmp_path)
    with pytest.raises(PrepError, match="lacks b.txt"):
        ByteFile("b.txt", {"train": 4}).check(tmp_path)
