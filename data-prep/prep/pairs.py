"""Corpora of sentence pairs, and their preparation from raw text to subword units.

The parent process reads the pairs in chunks, worker processes tokenize and segment the chunks, and
the parent writes them in order, so memory use does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from norm_plugin.io.command_line import CommandError, at_least
from prep import subwords
from prep.binarize import make_dictionary
from prep.files import SPLITS, RawFile, check_count, lines_of, report
from prep.folder import Counts, DataSpec, make_data_spec
from prep.stages import RawCorpus
from prep.text import Limits, TextRules, apply_rules, tidy
from prep.workers import map_chunks

Languages = tuple[str, str]  # source, target
Pair = tuple[str, str]
Parser = Callable[[Iterable[str]], Iterable[str]]  # lines of a file to sentences
Writer = Callable[[Pair], None]


@dataclass(frozen=True, kw_only=True)
class Corpus(RawCorpus):
    """A corpus of sentence pairs."""

    languages: Languages
    files: Callable[[str, str], list[RawFile]]
    """The raw files of a split and a language, in order."""
    parsers: Mapping[str, Parser] = field(default_factory=dict)
    """The parsers of splits whose files are not plain text."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The published numbers of lines; another number is an error."""
    rules: TextRules
    """The processing of a raw line. Without a tokenizer, the text must be tokenized."""
    other_rules: Mapping[str, TextRules] = field(default_factory=dict)
    """The rules of splits that differ from those of the training text."""
    merges: int | None = None
    """The default number of BPE operations; None for the largest number that `types` allows."""
    types: Mapping[str, int] = field(default_factory=dict)
    """The size of each language's vocabulary in the paper, if `merges` is None."""
    joint: bool = True
    """Whether both languages share a subword model and a dictionary."""
    clean_words: Limits | None = None
    """The limits of training pairs in words."""
    clean_pieces: Limits | None = None
    """The limits of training pairs in subword units."""
    valid_every: int = 0
    """Use every Nth clean training pair for validation; 0 if validation has its own files."""
    compound_split: bool = False
    """Whether papers also report BLEU with compounds split at hyphens."""

    @property
    def splits(self) -> list[str]:
        """The splits that have raw files."""
        return [split for split in SPLITS if not (split == "valid" and self.valid_every)]

    @property
    def raw_files(self) -> list[RawFile]:
        return [
            file
            for split in self.splits
            for language in self.languages
            for file in self.files(split, language)
        ]

    @property
    def scoring(self) -> list[str]:
        """The properties that affect scoring; `norm_plugin` reads them in the manifest."""
        holds = {
            "tokenized_reference": not self.rules.tokenizer,
            "compound_split": self.compound_split,
        }
        return [name for name, value in holds.items() if value]

    def rules_of(self, split: str, args: argparse.Namespace) -> TextRules:
        """Return the rules of a split with the user's options; sentencepiece needs no tokenizer."""
        rules = self.other_rules.get(split, self.rules)
        if args.subword == "sentencepiece":
            # tokenized text has escapes, which the detokenizer would otherwise remove
            return rules._replace(tokenizer="", unescape=not rules.tokenizer)
        return rules

    def groups(self, languages: Languages) -> list[list[str]]:
        """Return the languages that share a subword model and a dictionary."""
        return [list(languages)] if self.joint else [[language] for language in languages]

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """See `RawCorpus.parse`."""
        merges = self.merges or "as many as give the paper's vocabularies"
        parser.add_argument(
            "--merges",
            type=at_least(1),
            default=self.merges,
            metavar="N",
            help=f"BPE operations, or pieces of sentencepiece (default: {merges})",
        )
        parser.add_argument(
            "--subword",
            choices=subwords.METHODS,
            default=subwords.METHODS[0],
            help="default: %(default)s",
        )
        for flag, language in zip(("--src", "--tgt"), self.languages):
            parser.add_argument(
                flag, choices=sorted(self.languages), default=language, help="default: %(default)s"
            )
        args = parser.parse_args(argv)
        if args.src == args.tgt:
            parser.error(f"--src and --tgt are both {args.src}; pass two languages")
        args.languages = (args.src, args.tgt)
        return args

    def data_spec(self, args: argparse.Namespace) -> DataSpec:
        settings = {
            "merges": args.merges or self.types,
            "lowercase": self.rules.lowercase,
            "subword": args.subword,
            "tokenizer": self.rules_of("train", args).tokenizer or "none",
        }
        return make_data_spec(self.name, args.src, args.tgt, settings, scoring=self.scoring)

    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        counts: dict[str, Counts] = {}
        for split in reversed(self.splits):  # the short ones first, so that errors show at once
            counts |= write_words(self, paths, work, split, args)
        models = learn_subwords(self, work, args)
        for split in SPLITS:
            write_pieces(self, work, split, models, args)
        for languages in self.groups(args.languages):
            texts = [work / "bpe" / f"train.{language}" for language in languages]
            make_dictionary(texts, [work / "bin" / f"dict.{x}.txt" for x in languages])
        return counts


# ---- raw files ------------------------------------------------------------------------------


def plain_files(stems: Mapping[str, str]) -> Callable[[str, str], list[RawFile]]:
    """Return one text file per split and language: STEM.LANGUAGE, plain or as .gz."""
    return lambda split, language: [RawFile(f"{stems[split]}.{language}")]


# Read line by line, as fairseq's preparation scripts do.
SEGMENT_START = re.compile(r'<seg id="[0-9]*">\s*')
SEGMENT_END = re.compile(r"\s*</seg>\s*")
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
TAGS = re.compile(r"</?(?:title|description)>")


def segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of every line with `<seg id`. Entities such as `&amp;` are not decoded."""
    for line in lines:
        if "<seg id" in line:
            yield SEGMENT_END.sub("", SEGMENT_START.sub("", line)).strip()


def talks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of IWSLT's train.tags files, without URLs, keywords and the tags of titles."""
    for line in lines:
        if not any(tag in line for tag in LEFT_OUT):
            yield TAGS.sub("", line)


def read_side(
    corpus: Corpus, paths: Mapping[str, Path], split: str, language: str
) -> Iterator[str]:
    """Yield the raw sentences of one side of a split."""
    parse = corpus.parsers.get(split, iter)
    for file in corpus.files(split, language):
        yield from parse(lines_of(paths[file.name]))


def read_pairs(
    corpus: Corpus, paths: Mapping[str, Path], split: str, languages: Languages
) -> Iterator[Pair]:
    """Yield the raw pairs of a split; CommandError if a line has no translation."""
    sides = [read_side(corpus, paths, split, language) for language in languages]
    number = 0
    for number, (source, target) in enumerate(zip_longest(*sides), 1):
        if source is None or target is None:
            shorter = languages[0 if source is None else 1]
            raise CommandError(
                f"{split} has fewer lines in {shorter}, {number - 1:,}, than in the other "
                "language; line N of one must be the translation of line N of the other"
            )
        if split != "train" and not (source.strip() and target.strip()):
            language = languages[0 if not source.strip() else 1]
            raise CommandError(f"{split}, line {number:,}, is empty in {language}")
        yield source, target
    check_count(split, number, corpus.lines.get(split, number))


# ---- words ----------------------------------------------------------------------------------


class TokenizedChunk(NamedTuple):
    """The kept pairs of a chunk, raw and tokenized, with the counts of its raw text."""

    raw: list[Pair]
    pairs: list[Pair]
    lines: int
    tokens: Counter[str]
    """The number of each token, by language."""


def tokenize_chunk(
    chunk: list[Pair], languages: Languages, rules: TextRules, clean: bool, limits: Limits | None
) -> TokenizedChunk:
    """Tokenize a chunk; with `clean`, remove empty pairs and those outside the limits."""
    sides = dict(zip(languages, zip(*chunk)))
    tokens = Counter({x: sum(len(line.split()) for line in side) for x, side in sides.items()})
    lines = [apply_rules(list(side), language, rules) for language, side in sides.items()]
    tokenized = TokenizedChunk([], [], len(chunk), tokens)
    for raw, pair in zip(chunk, zip(*lines)):
        source, target = map(tidy, pair) if limits else pair
        # the tokenizer does not change a line of white space
        has_words = source.strip() and target.strip()
        if clean and not (limits.keep(source, target) if limits else has_words):
            continue
        tokenized.raw.append(raw)
        tokenized.pairs.append((source, target))
    return tokenized


def write_words(
    corpus: Corpus, paths: Mapping[str, Path], work: Path, split: str, args: argparse.Namespace
) -> dict[str, Counts]:
    """Write tok/ of a split, and raw/ unless it is train; return the counts of the raw text.

    If the corpus has no validation files, every Nth pair of train goes to validation.
    """
    clean, languages = split == "train", args.languages
    every = corpus.valid_every if clean else 0
    function = partial(
        tokenize_chunk,
        languages=languages,
        rules=corpus.rules_of(split, args),
        clean=clean,
        limits=corpus.clean_words if clean else None,
    )
    lines, number, tokens = 0, 0, Counter[str]()
    with ExitStack() as files:

        def writer(folder: str, name: str) -> Writer:
            return files.enter_context(writing(work / folder / name, languages))

        splits = [split, "valid"] if every else [split]
        tok = {name: writer("tok", name) for name in splits}
        raw = {name: writer("raw", name) for name in splits if name != "train"}
        pairs = read_pairs(corpus, paths, split, languages)
        chunks = map_chunks(function, pairs, args.workers, split)
        for tokenized in files.enter_context(closing(chunks)):
            for raw_pair, pair in zip(tokenized.raw, tokenized.pairs):
                number += 1
                name = "valid" if every and number % every == 0 else split
                tok[name](pair)
                if name in raw:
                    raw[name](raw_pair)
            lines += tokenized.lines
            tokens += tokenized.tokens
    report(f"tokenize {split}: {lines:,} pairs, {lines - number:,} omitted")
    if number == 0:
        raise CommandError(f"{split} has {lines:,} pairs, but none to keep")
    return {f"{split}.{x}": {"lines": lines, "tokens": tokens[x]} for x in languages}


@contextmanager
def writing(stem: Path, languages: Languages) -> Iterator[Writer]:
    """Yield a function that appends a pair to `stem`.LANGUAGE of both languages."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        streams = [
            files.enter_context(open(f"{stem}.{x}", "w", encoding="utf-8", newline="\n"))
            for x in languages
        ]

        def write(pair: Pair) -> None:
            for stream, line in zip(streams, pair):
                stream.write(f"{line}\n")

        yield write


# ---- subword units --------------------------------------------------------------------------


def learn_subwords(corpus: Corpus, work: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Learn subword models from tok/train.* into bpe/; return the model of each language."""
    suffix = ".model" if args.subword == "sentencepiece" else ""
    stem = "sentencepiece" if suffix else "codes"
    models = {}
    for languages in corpus.groups(args.languages):
        part = "" if corpus.joint else f".{languages[0]}"
        model = work / "bpe" / f"{stem}{part}{suffix}"
        training = [work / "tok" / f"train.{language}" for language in languages]
        types = corpus.types.get(languages[0], 0)
        if suffix:
            subwords.learn_sentencepiece(training, model, args.merges or types)
        elif args.merges:
            subwords.learn_bpe(subwords.count_words(training), model, args.merges)
        else:
            subwords.learn_bpe_of_types(subwords.count_words(training), model, types)
        models.update(dict.fromkeys(languages, model))
    return models


def make_pieces(
    chunk: list[Pair], segmenters: list[subwords.Segment], limits: Limits | None
) -> list[Pair]:
    """Segment a chunk into subword units; with `limits`, remove the pairs outside them."""
    pairs = list(zip(*(segment(list(side)) for segment, side in zip(segmenters, zip(*chunk)))))
    if limits is None:
        return pairs
    tidied = [(tidy(source), tidy(target)) for source, target in pairs]
    return [pair for pair in tidied if limits.keep(*pair)]


def write_pieces(
    corpus: Corpus, work: Path, split: str, models: Mapping[str, Path], args: argparse.Namespace
) -> None:
    """Write bpe/ of a split from its tok/."""
    languages, number = args.languages, 0
    function = partial(
        make_pieces,
        segmenters=[subwords.segmenter(args.subword, models[x]) for x in languages],
        limits=corpus.clean_pieces if split == "train" else None,
    )
    pairs = zip(*(lines_of(work / "tok" / f"{split}.{language}") for language in languages))
    chunks = map_chunks(function, pairs, args.workers, split)
    with writing(work / "bpe" / split, languages) as write, closing(chunks):
        for pieces in chunks:
            for pair in pieces:
                write(pair)
            number += len(pieces)
    report(f"segment {split}: {number:,} pairs")
