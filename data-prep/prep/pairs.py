"""Sentence pairs, from raw text to subword units: what every corpus goes through.

The parent process reads the pairs in chunks, worker processes tokenize and segment the chunks, and
the parent writes them in order. So memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

from tqdm import tqdm

from prep import subwords
from prep.cleaning import Limits, tidy
from prep.corpus import Choices, Corpus, Languages
from prep.manifest import Counts
from prep.messages import PrepError, report
from prep.text_files import SPLITS, read_lines
from prep.text_rules import TextRules, apply_rules
from prep.workers import Workers, chunked, start_workers

Pair = tuple[str, str]


def read_pairs(corpus: Corpus, raw: Path, split: str, languages: Languages) -> Iterator[Pair]:
    """Yield the raw pairs of a split; raises PrepError if a line has no partner."""
    sides = [corpus.raw.read(raw, split, language) for language in languages]
    number = 0
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            longer, left = (0, sides[0]) if target is None else (1, sides[1])
            more = number + 1 + sum(1 for _ in left)
            raise PrepError(
                f"{split} has {more:,} lines in {languages[longer]} and {number:,} in "
                f"{languages[1 - longer]}; line N of one must be the translation of line N of "
                "the other"
            )
        number += 1
        if split != "train" and not (source.strip() and target.strip()):
            language = languages[0 if not source.strip() else 1]
            raise PrepError(f"{split}, line {number:,}, is empty in {language}")
        yield source, target
    if number == 0:
        raise PrepError(f"{split} is empty")
    expected = corpus.raw.lines.get(split, number)
    if number != expected:
        raise PrepError(f"{split} has {number:,} lines; {expected:,} are expected")


class Words(NamedTuple):
    """A chunk of pairs after tokenization and cleaning, with counts of what went in."""

    raw: list[Pair]
    pairs: list[Pair]
    lines: int
    tokens: list[int]


def make_words(
    chunk: list[Pair], languages: Languages, rules: TextRules, clean: bool, limits: Limits | None
) -> Words:
    """Tokenize a chunk; with `clean`, leave out empty pairs and those outside the limits."""
    sides = [list(side) for side in zip(*chunk)]
    made = [apply_rules(side, language, rules) for side, language in zip(sides, languages)]
    kept = Words([], [], len(chunk), [sum(len(line.split()) for line in side) for side in sides])
    for raw, pair in zip(chunk, zip(*made)):
        source, target = map(tidy, pair) if limits else pair
        # The tokenizer leaves a line of white space as it is.
        has_words = source.strip() and target.strip()
        if clean and not (limits.keep(source, target) if limits else has_words):
            continue
        kept.raw.append(raw)
        kept.pairs.append((source, target))
    return kept


def make_pieces(
    chunk: list[Pair],
    segmenters: list[Callable[[list[str]], list[str]]],
    limits: Limits | None,
) -> list[Pair]:
    """Segment a chunk into subword units; with `limits`, leave out the pairs outside them."""
    sides = [segment(list(side)) for segment, side in zip(segmenters, zip(*chunk))]
    pairs = list(zip(*sides))
    if limits is None:
        return pairs
    tidied = [(tidy(source), tidy(target)) for source, target in pairs]
    return [pair for pair in tidied if limits.keep(*pair)]


class PairWriter:
    """Writes both sides of a parallel text, `stem`.LANGUAGE; `files` closes them."""

    def __init__(self, stem: Path, languages: Languages, files: ExitStack) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        self._streams: list[IO[str]] = []
        for language in languages:
            stream = open(f"{stem}.{language}", "w", encoding="utf-8", newline="\n")  # noqa: SIM115
            self._streams.append(files.enter_context(stream))

    def write(self, pairs: Iterable[Pair]) -> None:
        """Append the pairs."""
        for pair in pairs:
            for stream, line in zip(self._streams, pair):
                stream.write(line + "\n")


# ---- the steps ------------------------------------------------------------------------------


def write_words(
    corpus: Corpus, raw: Path, work: Path, split: str, choices: Choices, workers: Workers
) -> dict[str, Counts]:
    """Write tok/ of a split, and raw/ unless it is train; returns the counts of the raw text."""
    clean = split == "train"
    function = partial(
        make_words,
        languages=choices.languages,
        rules=corpus.rules_of(split, choices),
        clean=clean,
        limits=corpus.clean_words if clean else None,
    )
    pairs = read_pairs(corpus, raw, split, choices.languages)
    lines = kept = 0
    tokens = [0, 0]
    with ExitStack() as files, tqdm(desc=split, unit=" pairs", leave=False, disable=None) as bar:
        text = _Splitter(work, split, corpus.valid_every if clean else 0, choices.languages, files)
        for words in workers.map(function, chunked(pairs)):
            text.write(words)
            lines += words.lines
            kept += len(words.pairs)
            tokens = [sum(both) for both in zip(tokens, words.tokens)]
            bar.update(words.lines)
    report(f"tokenize {split}: {lines:,} pairs, {lines - kept:,} left out")
    if kept == 0:
        limits = f" within {corpus.clean_words}" if corpus.clean_words else " with text in both"
        raise PrepError(f"{split} has no pair{limits}, of {lines:,}")
    return {
        f"{split}.{language}": {"lines": lines, "tokens": count}
        for language, count in zip(choices.languages, tokens)
    }


class _Splitter:
    """Writes words to tok/ and raw text to raw/, every Nth pair to validation."""

    def __init__(
        self, work: Path, split: str, valid_every: int, languages: Languages, files: ExitStack
    ) -> None:
        names = {split, "valid"} if valid_every else {split}
        self._tok = {n: PairWriter(work / "tok" / n, languages, files) for n in names}
        self._raw = {n: PairWriter(work / "raw" / n, languages, files) for n in names - {"train"}}
        self._split, self._valid_every, self._number = split, valid_every, 0

    def write(self, words: Words) -> None:
        for raw, pair in zip(words.raw, words.pairs):
            self._number += 1
            aside = self._valid_every and self._number % self._valid_every == 0
            name = "valid" if aside else self._split
            self._tok[name].write([pair])
            if name in self._raw:
                self._raw[name].write([raw])


def learn_subwords(corpus: Corpus, work: Path, choices: Choices) -> dict[str, Path]:
    """Learn from tok/train.* and write the models to bpe/; returns the model of each language."""
    suffix = ".model" if choices.subword == "sentencepiece" else ""
    stem = "sentencepiece" if suffix else "codes"
    models = {}
    groups = [list(choices.languages)] if corpus.joint else [[x] for x in choices.languages]
    for languages in groups:
        part = "" if corpus.joint else f".{languages[0]}"
        model = work / "bpe" / f"{stem}{part}{suffix}"
        training = [work / "tok" / f"train.{language}" for language in languages]
        types = corpus.types.get(languages[0], 0)
        if suffix:
            subwords.learn_sentencepiece(training, model, choices.merges or types)
        elif choices.merges:
            subwords.learn_bpe(subwords.count_words(training), model, choices.merges)
        else:
            subwords.learn_bpe_of_types(subwords.count_words(training), model, types)
        models.update(dict.fromkeys(languages, model))
    return models


def write_pieces(
    corpus: Corpus,
    work: Path,
    split: str,
    choices: Choices,
    models: dict[str, Path],
    workers: Workers,
) -> None:
    """Write bpe/ of a split from its tok/."""
    function = partial(
        make_pieces,
        segmenters=[
            subwords.segmenter(choices.subword, models[language]) for language in choices.languages
        ],
        limits=corpus.clean_pieces if split == "train" else None,
    )
    sides = [read_lines(work / "tok" / f"{split}.{language}") for language in choices.languages]
    kept = 0
    with ExitStack() as files, tqdm(desc=split, unit=" pairs", leave=False, disable=None) as bar:
        text = PairWriter(work / "bpe" / split, choices.languages, files)
        pairs: Iterator[Pair] = zip(*sides)
        for pieces in workers.map(function, chunked(pairs)):
            text.write(pieces)
            kept += len(pieces)
            bar.update(len(pieces))
    report(f"segment {split}: {kept:,} pairs")


def write_text(
    corpus: Corpus, raw: Path, work: Path, choices: Choices, processes: int
) -> dict[str, Counts]:
    """Fill raw/, tok/ and bpe/ of `work`; returns the counts of the raw text."""
    counts: dict[str, Counts] = {}
    with start_workers(processes) as workers:
        for split in reversed(SPLITS):  # the short ones first: errors in them show at once
            if not (split == "valid" and corpus.valid_every):
                counts.update(write_words(corpus, raw, work, split, choices, workers))
    # Learning needs the most memory, so no idle workers hold theirs meanwhile.
    models = learn_subwords(corpus, work, choices)
    with start_workers(processes) as workers:
        for split in SPLITS:
            write_pieces(corpus, work, split, choices, models, workers)
    return counts
