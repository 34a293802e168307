"""Reading and checking text."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from prep import text_files
from prep.messages import PrepError


def write(path, text):
    path.write_bytes(text.encode("utf-8"))
    return path


def test_a_line_ends_at_newline_and_nowhere_else(tmp_path):
    lines = ["a\u2028b", "c\x0bd\x0c", "e\r", "", "f\x85\u00a0g"]
    path = write(tmp_path / "text", "\n".join(lines))
    assert list(text_files.read_lines(path)) == lines
    zipped = tmp_path / "text.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(text_files.read_lines(zipped)) == lines


def test_missing_file_is_named(tmp_path):
    with pytest.raises(PrepError, match=r"nothing\.en is missing"):
        text_files.count_lines(tmp_path / "nothing.en")


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_gzip_cut_in_half_is_named_with_its_lines(tmp_path, keep):
    # Text that does not compress well, so that whole lines come out before the cut.
    lines = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3000)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "train.en.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(PrepError, match=r"train\.en\.gz is truncated or damaged after [\d,]+ line"):
        text_files.count_lines(path)


def test_what_is_no_gzip_is_an_error(tmp_path):
    with pytest.raises(PrepError, match=r"train\.en\.gz is truncated or damaged after 0 lines"):
        text_files.count_lines(write(tmp_path / "train.en.gz", "a plain text\n"))


def test_other_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "text.de"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(PrepError, match=r"text\.de, line 2, is not UTF-8"):
        text_files.count_lines(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_is_no_sentence_is_named(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 30)
    text = ("a" * 29 + "\n" + "ä " * 9 + "\n").encode() + b"b" * 30
    path = tmp_path / ("text.en.gz" if packed else "text.en")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert text_files.count_lines(path) == 3
    path.write_bytes(gzip.compress(text + b"b") if packed else text + b"b")
    with pytest.raises(PrepError, match=r"text\.en\S*, line 3, is longer than 30 bytes"):
        text_files.count_lines(path)


def test_a_huge_line_is_not_read_into_memory(tmp_path):
    with open(tmp_path / "text", "wb") as stream:
        stream.write(b"a\n")
        stream.truncate(1 << 40)  # a hole in the file: no block of the disk is taken
    with pytest.raises(PrepError, match=r"line 2, is longer than 1,048,576 bytes"):
        text_files.count_lines(tmp_path / "text")


def test_a_word_that_is_no_word_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_WORD", 8)
    path = write(tmp_path / "text.vi", "ääääääää bbbbbbbb\u2028cccccccc\nshort\n")
    assert text_files.count_lines(path) == 2
    # Moses removes U+001F, at which Python's split cuts, so that a longer word comes of it.
    for word in ("ä" * 9, "aaaa\x1faaaa"):
        write(path, f"short\na {word} b\n")
        with pytest.raises(PrepError, match=r"text\.vi, line 2, holds a word of more than 8 char"):
            text_files.count_lines(path)


def test_check_parallel_names_both_files_and_both_counts(tmp_path):
    three = write(tmp_path / "a.en", "1\n2\n3\n")
    two = write(tmp_path / "a.de", "1\n2\n")
    empty = write(tmp_path / "b.en", "")
    assert text_files.check_parallel(three, three) == 3
    with pytest.raises(PrepError, match=r"a\.en has 3 lines and .*a\.de has 2; line N"):
        text_files.check_parallel(three, two)
    with pytest.raises(PrepError, match=r"a\.de has 2 lines and .*a\.de has 2; 3 are expected"):
        text_files.check_parallel(two, two, 3)
    with pytest.raises(PrepError, match=r"b\.en and .*b\.en are empty"):
        text_files.check_parallel(empty, empty)
