"""Which pairs clean-corpus-n.perl keeps, by the borders in its source, and pairs without a word."""

from __future__ import annotations

import pytest

from prep.pairs import make_words
from prep.text import Limits, TextRules, tidy


def words(count):
    return " ".join("w" * count)


@pytest.mark.parametrize(
    ("source", "target", "kept"),
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
def test_ratio_and_length(source, target, kept):
    assert Limits(1.5, 1, 175).keep(words(source), words(target)) == kept


def test_a_word_of_more_than_a_thousand_characters():
    limits = Limits()
    assert limits.keep("a " + "x" * 1000, "a b")
    assert not limits.keep("a " + "x" * 1001, "a b")
    assert not limits.keep("a b", "a " + "x" * 1001)


def test_tidy():
    assert tidy(" a\u00a0 b|c \u2028 | d\t") == "a bc d"


@pytest.mark.parametrize("empty", ["", " ", "\r", "\u2028"])
@pytest.mark.parametrize("tokenizer", ["", "sacremoses"])
@pytest.mark.parametrize("limits", [None, Limits(ratio=2.0)])
def test_a_pair_without_a_word_is_no_training_pair(empty, tokenizer, limits):
    chunk = [(empty, "a"), ("a b", "b"), ("a", empty), (empty, empty)]
    rules = TextRules(tokenizer=tokenizer)
    words = make_words(chunk, ("en", "de"), rules, clean=True, limits=limits)
    assert words.pairs == words.raw == [("a b", "b")] and words.lines == len(chunk)
