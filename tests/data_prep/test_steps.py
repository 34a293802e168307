"""Reading, checking, tokenising and BPE, each against values worked out by hand."""

from __future__ import annotations

import gzip
import hashlib

import pytest

import steps
from steps import PrepError


def write(path, text):
    path.write_bytes(text.encode("utf-8"))
    return path


def test_a_line_ends_at_newline_and_nowhere_else(tmp_path):
    lines = ["a\u2028b", "c\x0bd\x0c", "e\r", "", "f\x85\u00a0g"]
    path = write(tmp_path / "text", "\n".join(lines))
    assert list(steps.read_lines(path)) == lines
    zipped = tmp_path / "text.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(steps.read_lines(zipped)) == lines


def test_missing_file_is_named(tmp_path):
    with pytest.raises(PrepError, match=r"nothing\.en is missing"):
        steps.count_lines(tmp_path / "nothing.en")


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_gzip_cut_in_half_is_named_with_its_lines(tmp_path, keep):
    # Text that does not compress well, so that whole lines come out before the cut.
    lines = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3000)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "train.en.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(PrepError, match=r"train\.en\.gz is truncated or damaged after [\d,]+ line"):
        steps.count_lines(path)


def test_what_is_no_gzip_is_an_error(tmp_path):
    with pytest.raises(PrepError, match=r"train\.en\.gz is truncated or damaged after 0 lines"):
        steps.count_lines(write(tmp_path / "train.en.gz", "a plain text\n"))


def test_other_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "text.de"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(PrepError, match=r"text\.de, line 2, is not UTF-8"):
        steps.count_lines(path)


def test_check_parallel_names_both_files_and_both_counts(tmp_path):
    three = write(tmp_path / "a.en", "1\n2\n3\n")
    two = write(tmp_path / "a.de", "1\n2\n")
    empty = write(tmp_path / "b.en", "")
    assert steps.check_parallel(three, three) == 3
    with pytest.raises(PrepError, match=r"a\.en has 3 lines and .*a\.de has 2; line N"):
        steps.check_parallel(three, two)
    with pytest.raises(PrepError, match=r"a\.de has 2 lines and .*a\.de has 2; 3 are expected"):
        steps.check_parallel(two, two, 3)
    with pytest.raises(PrepError, match=r"b\.en and .*b\.en are empty"):
        steps.check_parallel(empty, empty)


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        ("en", "A man's hat, 1,000 “big”.", "a man &apos;s hat , 1,000 &quot; big . &quot;"),
        (
            "en",
            "Black-and-white [dog] & <cat>",
            "black-and-white &#91; dog &#93; &amp; &lt; cat &gt;",
        ),
        ("de", "Straße – GRÜNE Äpfel…", "straße - grüne äpfel ..."),
        ("de", "  Ein\tMann  z.B. hier. ", "ein mann z.b. hier ."),
        # tokenizer.perl splits the last full stop whatever stands before it.
        ("en", "In the U.S.A.", "in the u.s.a ."),
        ("de", "Er wurde 75.", "er wurde 75 ."),
        ("en", "Mr. Smith waits...", "mr. smith waits ..."),
        ("en", "", ""),
    ],
)
def test_tokenise_as_moses_does(language, line, expected):
    assert steps.tokenise_lines([line], language, lowercase=True) == [expected]


def test_case_stays_without_lowercase():
    assert steps.tokenise_lines(["A Dog."], "en", lowercase=False) == ["A Dog ."]


def test_several_processes_give_the_same_bytes(tmp_path):
    lines = [f"Line {number}: it's a “test”, Mr. {number}." for number in range(4100)]
    source = write(tmp_path / "source.en", "".join(f"{line}\n" for line in lines))
    for count in (1, 2):
        with steps.start_workers(count) as workers:
            steps.tokenise(source, tmp_path / f"by{count}", "en", True, workers)
    one = (tmp_path / "by1").read_bytes()
    assert one == (tmp_path / "by2").read_bytes()
    assert (
        one.decode().splitlines()[4099]
        == "line 4099 : it &apos;s a &quot; test , &quot; mr. 4099 ."
    )
    assert one.count(b"\n") == 4100


def test_an_input_error_passes_through_the_processes(tmp_path):
    whole = gzip.compress("".join(f"{number}\n" for number in range(9000)).encode())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with steps.start_workers(2) as workers, pytest.raises(PrepError, match=r"cut\.gz is truncated"):
        steps.tokenise(path, tmp_path / "target", "en", True, workers)


def test_learn_joint_bpe_counts_both_sides(tmp_path):
    # By hand: "a b" is the most frequent pair only when both sides are counted (2 + 2 > 3).
    english = write(tmp_path / "train.en", "abx abx cd cd cd\n")
    german = write(tmp_path / "train.de", "aby aby\n")
    codes = tmp_path / "bpe" / "codes"
    steps.learn_joint_bpe([english, german], codes, merges=2)
    assert codes.read_text().splitlines() == ["#version: 0.2", "a b", "c d</w>"]
    with steps.start_workers(1) as workers:
        steps.apply_bpe(english, tmp_path / "bpe" / "train.en", codes, workers)
    assert (tmp_path / "bpe" / "train.en").read_text() == "ab@@ x ab@@ x cd cd cd\n"


def test_codes_are_not_remembered_from_another_corpus(tmp_path):
    text = write(tmp_path / "text", "abc\n")
    codes, out = tmp_path / "codes", tmp_path / "out"
    with steps.start_workers(1) as workers:
        for merge, expected in (("a b", "ab@@ c\n"), ("b c</w>", "a@@ bc\n")):
            write(codes, f"#version: 0.2\n{merge}\n")
            steps.apply_bpe(text, out, codes, workers)
            assert out.read_text() == expected


def test_binarise_says_why_fairseq_failed(tmp_path):
    with pytest.raises(PrepError, match=r"fairseq-preprocess ended with 1: .*train\.(en|de)"):
        steps.binarise(tmp_path, tmp_path / "bin", "en", "de", 1)
