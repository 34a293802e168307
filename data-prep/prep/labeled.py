"""Corpora of labeled sentences, or pairs of sentences: what one declares, and its raw files.

OUT/tok holds NAME.input0, the sentences, and NAME.label, a label a line; OUT/bin/input0 and
OUT/bin/label hold what fairseq's task sentence_prediction reads. Where a label is that of a pair,
the second sentences are in NAME.input1. Words that are rare in the training text are unknown, or
those that are not in --dictionary.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from norm_plugin.commands.command_line import CommandError
from prep.binarize import make_dictionary
from prep.files import RawFile, file_digest, lines_of, report, write_lines
from prep.folder import SENTENCE_PREDICTION, Counts, Recipe, make_recipe
from prep.stages import SEED, RawCorpus
from prep.text import TextRules, apply_rules

TEXT, SECOND, LABEL = "input0", "input1", "label"  # as the task names them


class Example(NamedTuple):
    """A sentence, or two, with their label, and where they stand, for errors."""

    text: str
    label: str
    place: str  # "FILE, line 7,"
    second: str = ""


class LabeledFiles(Protocol):
    """The raw files of a corpus."""

    random_split: bool
    """Whether the corpus has no split of its own and is split by a seed."""
    pairs: bool
    """Whether the label is that of two sentences."""

    @property
    def files(self) -> list[RawFile]:
        """All files."""

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, list[Example]]:
        """The sentences of each split; raises CommandError for files of another size."""


@dataclass(frozen=True)
class FileOfSplit:
    """One plain file a split, whose lines are a label, a space and a sentence."""

    names: Mapping[str, str]
    """The file of each split."""
    lines: Mapping[str, int]
    """The published number of lines of each split; another number is an error."""
    random_split = False
    pairs = False

    @property
    def files(self) -> list[RawFile]:
        return [RawFile(name) for name in self.names.values()]

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, list[Example]]:
        splits: dict[str, list[Example]] = {}
        for split, name in self.names.items():
            lines = list(lines_of(paths[name]))
            check_count(name, len(lines), self.lines[split])
            splits[split] = []
            for number, line in enumerate(lines, 1):
                label, _, text = line.partition(" ")
                splits[split].append(Example(text, label, f"{name}, line {number:,},"))
        return splits


@dataclass(frozen=True)
class FileOfLabel:
    """One file a label, plain or in an archive, of which a seed draws the splits."""

    members: Mapping[str, str]
    """The file of each label in the archive."""
    archive: str
    lines: int
    """The published number of lines of each file; another number is an error."""
    sizes: Mapping[str, int]
    """The number of sentences of each split."""
    encodings: tuple[str, ...] = ("UTF-8",)
    """The first in which a file can be read is taken."""
    random_split = True
    pairs = False

    @property
    def files(self) -> list[RawFile]:
        return [RawFile(name, self.archive) for name in self.members.values()]

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, list[Example]]:
        """The splits that a seed draws; what is left over is in none of them."""
        examples = []
        for label, name in self.members.items():
            lines = self._decoded(paths[name])
            check_count(name, len(lines), self.lines)
            for number, text in enumerate(lines, 1):
                examples.append(Example(text, label, f"{name}, line {number:,},"))
        draw = random.Random(split_seed).random  # its sequence is the same in every Python
        keys = [draw() for _ in examples]
        order = iter(sorted(range(len(examples)), key=keys.__getitem__))
        return {
            split: [examples[next(order)] for _ in range(size)]
            for split, size in self.sizes.items()
        }

    def _decoded(self, path: Path) -> list[str]:
        content = path.read_bytes()
        for encoding in self.encodings:
            try:
                return content.decode(encoding).removesuffix("\n").split("\n")
            except UnicodeDecodeError:
                continue
        known = " nor in ".join(self.encodings)
        raise CommandError(f"{path.name} is neither in {known}; download it again")


@dataclass(frozen=True)
class Tables:
    """A table with tabs for training and one for validation, as the GLUE benchmark has them.

    The labels of GLUE's test sets are not published, so test is the text of valid.
    """

    archive: str
    members: Mapping[str, str]
    """The tables of train and valid in the archive."""
    columns: tuple[str, str, str]
    """The headings of the first sentence, of the second and of the label."""
    lines: Mapping[str, int]
    """The published number of pairs of train and of valid; another number is an error."""
    random_split = False
    pairs = True

    @property
    def files(self) -> list[RawFile]:
        return [RawFile(name, self.archive) for name in self.members.values()]

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, list[Example]]:
        splits = {
            split: list(self._table(name, paths[name], self.lines[split]))
            for split, name in self.members.items()
        }
        return {**splits, "test": splits["valid"]}

    def _table(self, name: str, path: Path, expected: int) -> Iterator[Example]:
        # Windows writes a byte order mark before the heading, and \r at the end of a line.
        heading, *rows = [
            line.removeprefix("\ufeff").removesuffix("\r").split("\t") for line in lines_of(path)
        ] or [[]]
        if missing := [column for column in self.columns if column not in heading]:
            raise CommandError(f"{name} has no column {', '.join(missing)}; it is another corpus")
        check_count(name, len(rows), expected, "pairs")
        first, second, label = (heading.index(column) for column in self.columns)
        for number, row in enumerate(rows, 2):
            place = f"{name}, line {number:,},"
            if len(row) != len(heading):
                columns = f"{len(row)} columns, and its heading {len(heading)}"
                raise CommandError(f"{place} has {columns}")
            yield Example(row[first], row[label], place, row[second])


def check_count(name: str, count: int, expected: int, what: str = "lines") -> None:
    """Raise CommandError unless a file has as many lines as the published one."""
    if count != expected:
        raise CommandError(
            f"{name} has {count:,} {what}, and the published file has {expected:,}; it is another "
            "corpus, or not whole"
        )


@dataclass(frozen=True, kw_only=True)
class LabeledCorpus(RawCorpus):
    """Everything in which one corpus of labeled sentences differs from another."""

    labels: tuple[str, ...]
    """All labels, in the order of the classes."""
    raw: LabeledFiles
    """How the raw files are read."""
    rules: TextRules
    """What is done to a sentence. Without a tokenizer the text is taken to come tokenized."""
    least_count: int = 2
    """How often a word occurs in the training text to be in the dictionary."""

    @property
    def raw_files(self) -> list[RawFile]:
        return self.raw.files

    @property
    def texts(self) -> tuple[str, ...]:
        """The sides that a model reads."""
        return (TEXT, SECOND) if self.raw.pairs else (TEXT,)

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        if self.raw.random_split:
            parser.add_argument(
                "--split-seed",
                type=SEED,
                default=1,
                metavar="N",
                help="of the random split into train, valid and test (default: %(default)s)",
            )
        parser.add_argument(
            "--dictionary",
            type=Path,
            metavar="FILE",
            help="dict.txt of a pre-trained model (default: the words of the training text)",
        )
        return parser.parse_args(argv)

    def recipe(self, args: argparse.Namespace, inputs: dict[str, str]) -> Recipe:
        settings: dict[str, Any] = {
            "labels": list(self.labels),
            "lowercase": self.rules.lowercase,
        }
        if args.dictionary is not None:
            check_dictionary(args.dictionary)
            settings["dictionary"] = file_digest(args.dictionary)
        else:
            settings["least_count"] = self.least_count
        if self.raw.random_split:
            settings["split_seed"] = args.split_seed
        second = SECOND if self.raw.pairs else None
        layout = SENTENCE_PREDICTION
        return make_recipe(self.name, TEXT, LABEL, settings, inputs, layout=layout, second=second)

    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        counts = {}
        for split, examples in self.raw.read(paths, getattr(args, "split_seed", None)).items():
            check_examples(examples, self.labels, self.raw.pairs)
            columns = {
                TEXT: [example.text for example in examples],
                SECOND: [example.second for example in examples],
            }
            for side in self.texts:
                text = apply_rules(columns[side], "en", self.rules)
                write_lines(work / "tok" / f"{split}.{side}", text)
                tokens = sum(len(line.split()) for line in columns[side])
                counts[f"{split}.{side}"] = {"lines": len(examples), "tokens": tokens}
            labels = [example.label for example in examples]
            write_lines(work / "tok" / f"{split}.{LABEL}", labels)
            what = "pairs" if self.raw.pairs else "sentences"
            report(f"write {split}: {len(examples):,} {what}")
        self._write_dictionaries(args.dictionary, work)
        return counts

    def _write_dictionaries(self, given: Path | None, work: Path) -> None:
        """The same dictionary beside each text, where fairseq expects it, and that of labels."""
        destinations = [work / "bin" / side / "dict.txt" for side in self.texts]
        if given is None:
            texts = [work / "tok" / f"train.{side}" for side in self.texts]
            make_dictionary(texts, destinations, self.least_count)
        else:
            for destination in destinations:
                destination.parent.mkdir(parents=True)
                shutil.copyfile(given, destination)
        # fairseq numbers the classes in the order of this file.
        write_lines(work / "bin" / LABEL / "dict.txt", [f"{label} 1" for label in self.labels])


def check_dictionary(path: Path) -> None:
    """Raise CommandError if the file is no dictionary of fairseq: a word, a space, a count."""
    if not path.is_file():
        raise CommandError(
            f"--dictionary is {path}, which is no file; name the dict.txt of a model"
        )
    number = 0
    for number, line in enumerate(lines_of(path), 1):
        word, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not word or not count.isdigit():
            raise CommandError(
                f"--dictionary {path}, line {number:,}, is {line[:40]!r}, not a word and a count; "
                "name the dict.txt of a model"
            )
    if number == 0:
        raise CommandError(f"--dictionary {path} is empty; name the dict.txt of a model")


def check_examples(examples: Sequence[Example], labels: tuple[str, ...], pairs: bool) -> None:
    """Raise CommandError for an unknown label and for a sentence without a word."""
    for example in examples:
        if example.label not in labels:
            raise CommandError(
                f"{example.place} has the label {example.label[:40]!r}; the labels are "
                f"{', '.join(labels)}"
            )
        if not example.text.strip() or (pairs and not example.second.strip()):
            raise CommandError(f"{example.place} has an empty sentence")
