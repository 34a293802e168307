"""Corpora of labeled sentences or sentence pairs.

OUT/tok has the sentences, NAME.input0, and their labels, NAME.label, one per line; the second
sentences of pairs are NAME.input1. OUT/bin is the input of fairseq's task sentence_prediction.
Words that are rare in the training text are unknown, or with --dictionary, words that it lacks.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.checkpoints.fairseq_input import load_dictionary
from norm_plugin.io.command_line import CommandError
from prep.binarize import make_dictionary
from prep.files import RawFile, RawFiles, check_count, file_digest, lines_of, report, write_lines
from prep.folder import Counts, DataSpec, make_data_spec
from prep.stages import SEED, RawCorpus
from prep.text import TextRules, apply_rules

TEXT, SECOND, LABEL = "input0", "input1", "label"  # as the task names them


class LabeledFiles(RawFiles):
    """The raw files of a corpus."""

    random_split = False
    """Whether a seed splits the corpus at random, as it has no standard split."""
    pairs = False
    """Whether the label belongs to a pair of sentences."""

    @abstractmethod
    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, pd.DataFrame]:
        """Return the examples of each split, one per row; the index is the place in a file.

        Raises:
            CommandError: a file has another size than published.
        """


def checked(
    table: pd.DataFrame, name: str, expected: int, unit: str = "lines", first: int = 1
) -> pd.DataFrame:
    """Return a file's lines from ``first`` on, indexed by ``FILE, line 7``, after a count."""
    check_count(name, len(table), expected, unit)
    table.index = [f"{name}, line {first + number:,}" for number in range(len(table))]
    return table


@dataclass(frozen=True, kw_only=True)
class FileOfSplit(LabeledFiles):
    """One plain file per split, whose lines are a label, a space and a sentence."""

    lines: Mapping[str, int]
    """The published number of lines of each split."""

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, pd.DataFrame]:
        splits = {}
        for split, name in self.members.items():
            rows = [line.partition(" ")[::2] for line in lines_of(paths[name])]
            table = pd.DataFrame(rows, columns=[LABEL, TEXT])
            splits[split] = checked(table, name, self.lines[split])
        return splits


@dataclass(frozen=True, kw_only=True)
class FileOfLabel(LabeledFiles):
    """One file per label, plain or in an archive, which a seed splits at random."""

    lines: int
    """The published number of lines of each file."""
    sizes: Mapping[str, int]
    """The number of sentences of each split."""
    encodings: tuple[str, ...] = ("UTF-8",)
    """The encodings to try, in order."""
    random_split = True

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, pd.DataFrame]:
        """Return the random splits of a seed; sentences beyond the splits' sizes are not used."""
        tables = []
        for label, name in self.members.items():
            table = pd.DataFrame({TEXT: self._decoded(paths[name]), LABEL: label})
            tables.append(checked(table, name, self.lines))
        table = pd.concat(tables)
        draw = random.Random(split_seed).random  # the same sequence in every version of Python
        keys = [draw() for _ in range(len(table))]
        order = iter(sorted(range(len(table)), key=keys.__getitem__))
        return {split: table.iloc[list(islice(order, size))] for split, size in self.sizes.items()}

    def _decoded(self, path: Path) -> list[str]:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        for encoding in self.encodings:
            try:
                return content.decode(encoding).removesuffix("\n").split("\n")
            except UnicodeDecodeError:
                continue
        raise CommandError(f"the encoding of {path.name} is none of {', '.join(self.encodings)}")


@dataclass(frozen=True, kw_only=True)
class Tables(LabeledFiles):
    """A TSV file for training and one for validation, as in the GLUE benchmark.

    The test set is the validation set, since the labels of GLUE's test sets are not published.
    """

    columns: tuple[str, str, str]
    """The names of the columns of the first sentence, the second one and the label."""
    lines: Mapping[str, int]
    """The published number of pairs of train and of valid."""
    pairs = True

    def read(self, paths: Mapping[str, Path], split_seed: int | None) -> dict[str, pd.DataFrame]:
        splits = {}
        for split, name in self.members.items():
            try:
                # files from Windows start with a byte order mark, and their lines end with \r
                table = pd.read_csv(
                    paths[name],
                    sep="\t",
                    quoting=csv.QUOTE_NONE,
                    dtype=str,
                    keep_default_na=False,
                    encoding="utf-8-sig",
                )[list(self.columns)]
            except (KeyError, ValueError) as error:  # a missing column, or a longer row
                raise CommandError(f"{name} is not the expected table: {error}") from error
            table = table.set_axis([TEXT, SECOND, LABEL], axis="columns")
            splits[split] = checked(table, name, self.lines[split], "pairs", first=2)
        return {**splits, "test": splits["valid"]}


@dataclass(frozen=True, kw_only=True)
class LabeledCorpus(RawCorpus):
    """A corpus of labeled sentences."""

    labels: tuple[str, ...]
    """All labels, in the order of the classes."""
    raw: LabeledFiles
    """How the raw files are read."""
    rules: TextRules
    """The processing of a sentence. Without a tokenizer, the text must be tokenized."""
    least_count: int = 2
    """The least number of occurrences of a word of the dictionary in the training text."""

    @property
    def raw_files(self) -> list[RawFile]:
        return self.raw.files

    @property
    def texts(self) -> tuple[str, ...]:
        """The input sides."""
        return (TEXT, SECOND) if self.raw.pairs else (TEXT,)

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        parser.set_defaults(split_seed=None)
        if self.raw.random_split:
            parser.add_argument(
                "--split-seed",
                type=SEED,
                default=1,
                metavar="N",
                help="seed of the random split into train, valid and test (default: %(default)s)",
            )
        parser.add_argument(
            "--dictionary",
            type=Path,
            metavar="FILE",
            help="dict.txt of a pre-trained model (default: the words of the training text)",
        )
        return parser.parse_args(argv)

    def data_spec(self, args: argparse.Namespace) -> DataSpec:
        settings: dict[str, Any] = {"labels": list(self.labels), "lowercase": self.rules.lowercase}
        if args.dictionary is not None:
            settings["dictionary"] = file_digest(args.dictionary)
        else:
            settings["least_count"] = self.least_count
        if self.raw.random_split:
            settings["split_seed"] = args.split_seed
        second = SECOND if self.raw.pairs else None
        return make_data_spec(
            self.name, TEXT, LABEL, settings, second=second, layout="sentence_prediction"
        )

    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        counts = {}
        for split, table in self.raw.read(paths, args.split_seed).items():
            self._check(table)
            for side in self.texts:
                text = table[side].tolist()
                write_lines(work / "tok" / f"{split}.{side}", apply_rules(text, "en", self.rules))
                tokens = sum(len(line.split()) for line in text)
                counts[f"{split}.{side}"] = {"lines": len(table), "tokens": tokens}
            write_lines(work / "tok" / f"{split}.{LABEL}", table[LABEL])
            report(f"write {split}: {len(table):,} examples")
        self._write_dictionaries(args.dictionary, work)
        return counts

    def _check(self, table: pd.DataFrame) -> None:
        """Raise CommandError for an unknown label or an empty sentence."""
        for place, label in table[LABEL][~table[LABEL].isin(self.labels)].items():
            labels = ", ".join(self.labels)
            raise CommandError(f"{place}, has the label {label[:40]!r}; the labels are {labels}")
        for side in self.texts:
            for place in table.index[table[side].str.strip() == ""]:
                raise CommandError(f"{place}, has an empty sentence")

    def _write_dictionaries(self, given: Path | None, work: Path) -> None:
        """Write the dictionary of the text for each input side, and that of the labels."""
        destinations = [work / "bin" / side / "dict.txt" for side in self.texts]
        if given is None:
            texts = [work / "tok" / f"train.{side}" for side in self.texts]
            make_dictionary(texts, destinations, self.least_count)
        else:
            load_dictionary(given)
            for destination in destinations:
                write_lines(destination, lines_of(given))
        # fairseq numbers the classes in this order
        write_lines(work / "bin" / LABEL / "dict.txt", [f"{label} 1" for label in self.labels])
