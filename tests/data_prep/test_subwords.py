"""BPE against values worked out by hand, and sentencepiece."""

from __future__ import annotations

import io
from collections import Counter
from random import Random

import pytest
from subword_nmt.apply_bpe import BPE

from norm_plugin.io.command_line import CommandError
from prep import subwords
from prep.files import write_lines

TEXT = ["the lower the newer", "newest and lowest & widest", "the  wide\u00a0low end"] * 4


def write(path, lines):
    write_lines(path, lines)
    return path


def test_learning_counts_all_files(tmp_path):
    # By hand: "a b" is the most frequent pair only when both sides are counted (2 + 2 > 3).
    english = write(tmp_path / "train.en", ["abx abx cd cd cd"])
    german = write(tmp_path / "train.de", ["aby aby"])
    codes = tmp_path / "bpe" / "codes"
    subwords.learn_bpe(subwords.count_words([english, german]), codes, merges=2)
    assert codes.read_text().splitlines() == ["#version: 0.2", "a b", "c d</w>"]
    segment = subwords.segmenter("subword-nmt", codes)
    assert segment(["abx abx cd", ""]) == ["ab@@ x ab@@ x cd", ""]


def test_a_separator_of_unicode_is_a_letter(tmp_path):
    subwords.learn_bpe(Counter({"a\u2028b": 3, "ab": 2}), tmp_path / "codes", merges=2)
    lines = (tmp_path / "codes").read_text().split("\n")
    assert lines[1:] == ["\u2028 b</w>", "a \u2028b</w>", ""]


@pytest.mark.parametrize("counts", [{}, {"a": 5, "b": 1, "ß": 2}])
def test_words_of_one_letter_have_nothing_to_join(counts, tmp_path):
    for learn in (subwords.learn_bpe, subwords.learn_bpe_of_types):
        with pytest.raises(CommandError, match="no word of the training text has two"):
            learn(Counter(counts), tmp_path / "codes", 10)


def test_segments_are_those_of_subword_nmt(tmp_path, monkeypatch):
    text, codes = write(tmp_path / "text", TEXT), tmp_path / "codes"
    subwords.learn_bpe(subwords.count_words([text]), codes, merges=12)
    bpe = BPE(io.StringIO(codes.read_text()))
    expected = [bpe.segment(line) for line in TEXT]
    assert any("@@ " in line for line in expected)
    monkeypatch.setattr(subwords, "MOST_CACHED_WORDS", 3)  # so that words leave the cache
    assert subwords.segmenter("subword-nmt", codes)(TEXT) == expected


def test_a_model_is_not_remembered_from_another_corpus(tmp_path):
    codes = tmp_path / "codes"
    for merge, expected in (("a b", "ab@@ c"), ("b c</w>", "a@@ bc")):
        write(codes, ["#version: 0.2", merge])
        assert subwords.segmenter("subword-nmt", codes)(["abc"]) == [expected]


def test_merges_are_chosen_by_the_number_of_types(tmp_path):
    random = Random(1)
    word_counts = Counter({"".join(random.choices("abcdef", k=8)): 2 for _ in range(200)})
    codes, every = tmp_path / "codes", tmp_path / "every"

    def types_of(merges):
        bpe = BPE(io.StringIO(every.read_text()), merges)
        return len({piece for word in word_counts for piece in bpe.segment(word).split()})

    subwords.learn_bpe(word_counts, every, 100)
    subwords.learn_bpe_of_types(word_counts, codes, 50)
    merges = len(codes.read_text().splitlines()) - 1
    assert codes.read_text().splitlines() == every.read_text().splitlines()[: merges + 1]
    assert types_of(merges) <= 50 < types_of(merges + 1)
    with pytest.raises(CommandError, match=r"5 types are too few: the letters alone need 12"):
        subwords.learn_bpe_of_types(word_counts, codes, 5)


def test_sentencepiece(tmp_path):
    text = write(tmp_path / "text", TEXT)
    models = [tmp_path / "one" / "a.model", tmp_path / "two" / "a.model"]
    for model in models:
        subwords.learn_sentencepiece([text, text], model, 30)
    assert models[0].read_bytes() == models[1].read_bytes()
    pieces = subwords.segmenter("sentencepiece", models[0])(["the lowest end", ""])
    assert pieces[0].replace(" ", "").replace("▁", " ").strip() == "the lowest end"
    assert len(pieces[0].split()) > 3 and pieces[1] == ""
    with pytest.raises(CommandError, match=r"cannot learn 9,000 pieces: .*[Vv]ocabulary size"):
        subwords.learn_sentencepiece([text], tmp_path / "model", 9000)


def test_sentencepiece_learns_from_a_part_of_much_text(tmp_path, monkeypatch):
    monkeypatch.setattr(subwords, "MOST_TRAINING_LINES", 5)
    files = [write(tmp_path / name, [f"{name} {n}" for n in range(6)]) for name in "ab"]
    seen = []
    monkeypatch.setattr(
        subwords.sentencepiece.SentencePieceTrainer,
        "train",
        lambda sentence_iterator, **options: seen.extend(sentence_iterator),
    )
    subwords.learn_sentencepiece(files, tmp_path / "model", 10)
    assert seen == ["a 0", "a 3", "b 0", "b 3"]
