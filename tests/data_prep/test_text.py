"""Tokenization is Moses' own, byte for byte; the rules of a corpus; which pairs are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prep.pairs import tokenize_chunk
from prep.text import Limits, TextRules, apply_rules, tidy

MOSES_OUTPUT = json.loads((Path(__file__).parent / "moses_output.json").read_text(encoding="utf-8"))
PLAIN = TextRules(tokenizer="sacremoses")
AGGRESSIVE = TextRules(tokenizer="sacremoses", aggressive=True)
NORMALIZED = AGGRESSIVE._replace(normalize="perl", no_control=True)
TABLES = [
    ("EN", "en", PLAIN),
    ("DE", "de", PLAIN),
    ("EN_AGGRESSIVE", "en", AGGRESSIVE),
    ("DE_AGGRESSIVE", "de", AGGRESSIVE),
    ("EN_NORMALIZED", "en", NORMALIZED),
    ("DE_NORMALIZED", "de", NORMALIZED),
]


@pytest.mark.parametrize(("name", "language", "rules"), TABLES, ids=[name for name, *_ in TABLES])
def test_as_the_perl_scripts(name, language, rules):
    lines, expected = map(list, zip(*MOSES_OUTPUT[name]))
    assert apply_rules(lines, language, rules) == expected


@pytest.mark.parametrize(
    ("line", "language", "rules", "expected"),
    [
        ("It’s “A”", "en", TextRules(plain_apostrophe=True), "It's “A”"),
        ("&quot; a &apos;s &#91; &amp;", "vi", TextRules(unescape=True), "\" a 's [ &"),
        (" a\r b\u2028", "vi", TextRules(), "a b"),
        # Perl knows no final sigma, Python does.
        ("ΟΔΟΣ İ", "en", TextRules(lowercase=True), "οδοσ i̇"),
        # The port's normalization keeps the end of a quotation where Moses' own moves it.
        ("„Ja.“", "de", TextRules(normalize="sacremoses"), '"Ja."'),
        ("„Ja.“", "de", TextRules(normalize="perl"), '"Ja".'),
    ],
)
def test_the_other_rules(line, language, rules, expected):
    assert apply_rules([line], language, rules) == [expected]


# ---- which pairs are kept, by the borders in the source of clean-corpus-n.perl ------------------


@pytest.mark.parametrize(
    ("source", "target", "is_kept"),
    [
        (2, 3, True),  # a ratio of exactly 1.5
        (3, 2, True),
        (4, 7, False),
        (7, 4, False),
        (175, 175, True),
        (175, 176, False),
        (176, 175, False),
        (1, 1, True),
        (0, 1, False),
        (1, 0, False),
    ],
)
def test_ratio_and_length(source, target, is_kept):
    assert Limits(1.5, 1, 175).keep(" ".join("w" * source), " ".join("w" * target)) == is_kept


def test_a_word_of_more_than_a_thousand_characters():
    limits = Limits()
    assert limits.keep("a " + "x" * 1000, "a b")
    assert not limits.keep("a " + "x" * 1001, "a b")
    assert not limits.keep("a b", "a " + "x" * 1001)


def test_tidy():
    assert tidy(" a\u00a0 b|c \u2028 | d\t") == "a bc d"


@pytest.mark.parametrize("empty", ["", "\r", "\u2028"])
@pytest.mark.parametrize(("tokenizer", "limits"), [("", None), ("sacremoses", Limits(ratio=2.0))])
def test_a_pair_without_a_word_is_no_training_pair(empty, tokenizer, limits):
    chunk = [(empty, "a"), ("a b", "b"), ("a", empty), (empty, empty)]
    rules = TextRules(tokenizer=tokenizer)
    tokenized = tokenize_chunk(chunk, ("en", "de"), rules, clean=True, limits=limits)
    assert tokenized.pairs == tokenized.raw == [("a b", "b")] and tokenized.lines == len(chunk)
