"""A corpus of labeled sentences: what it declares, and its stages fetch, prepare and binarize.

OUT/tok holds NAME.input0, the sentences, and NAME.label, a label a line; OUT/bin/input0 and
OUT/bin/label hold what fairseq's task sentence_prediction reads. Where a label is that of a pair,
the second sentences are in NAME.input1. Words that are rare in the training text are unknown, or
those that are not in --dictionary.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prep.binarize import binarize_side, make_word_dictionary
from prep.command_line import SEED, parser_of
from prep.exit_status import run_command
from prep.fetch import Source
from prep.labeled_files import Examples, LabeledFiles
from prep.layout import SENTENCE_PREDICTION
from prep.manifest import Counts, Recipe, make_recipe
from prep.messages import PrepError, report
from prep.raw_stage import run_raw_stages
from prep.text_files import file_digest, read_lines, write_lines
from prep.text_rules import TextRules, apply_rules

TEXT, SECOND, LABEL = "input0", "input1", "label"  # as the task names them


@dataclass(frozen=True)
class LabeledCorpus:
    """Everything in which one corpus of labeled sentences differs from another."""

    name: str
    """The stem of the corpus's file in data-prep/."""
    labels: tuple[str, ...]
    """All labels, in the order of the classes."""
    sources: tuple[Source, ...]
    """The files to download."""
    raw: LabeledFiles
    """How the raw files are checked and read."""
    rules: TextRules
    """What is done to a sentence. Without a tokenizer the text is taken to come tokenized."""
    least_count: int = 2
    """How often a word occurs in the training text to be in the dictionary."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The sides that a model reads."""
        return (TEXT, SECOND) if self.raw.pairs else (TEXT,)


def run_labeled(corpus: LabeledCorpus, description: str | None) -> None:
    """The command of a corpus: read sys.argv, run the stages, exit with a status."""
    run_command(lambda: run_stages(corpus, parse_args(corpus, description)))


def parse_args(
    corpus: LabeledCorpus, description: str | None, argv: list[str] | None = None
) -> argparse.Namespace:
    """The parsed command line of a corpus; `argv` is by default that of the process."""
    parser = parser_of(description)
    if corpus.raw.random_split:
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
    args = parser.parse_args(argv)
    args.split_seed = getattr(args, "split_seed", None)
    return args


def run_stages(corpus: LabeledCorpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""

    def binarize(work: Path) -> None:
        for side in (*corpus.texts, LABEL):
            dictionary = args.out / "bin" / side / "dict.txt"
            binarize_side(args.out / "tok", dictionary, work / side, side, args.workers)

    build = partial(_build, corpus, args)
    run_raw_stages(corpus, args, partial(_recipe, corpus, args), build, binarize)


def _recipe(corpus: LabeledCorpus, args: argparse.Namespace, inputs: dict[str, str]) -> Recipe:
    settings: dict[str, Any] = {
        "labels": list(corpus.labels),
        "lowercase": corpus.rules.lowercase,
    }
    if args.dictionary is not None:
        check_dictionary(args.dictionary)
        settings["dictionary"] = file_digest(args.dictionary)
    else:
        settings["least_count"] = corpus.least_count
    if args.split_seed is not None:
        settings["split_seed"] = args.split_seed
    layout, second = SENTENCE_PREDICTION, SECOND if corpus.raw.pairs else None
    return make_recipe(corpus.name, TEXT, LABEL, settings, inputs, layout=layout, second=second)


def _build(
    corpus: LabeledCorpus, args: argparse.Namespace, raw: Path, work: Path
) -> dict[str, Counts]:
    """Fill tok/ and the dictionaries of `work`; returns the counts of the raw text."""
    counts = {}
    for split, examples in corpus.raw.read(raw, args.split_seed).items():
        check_examples(examples, corpus.labels, corpus.raw.pairs)
        columns = {
            TEXT: [example.text for example in examples],
            SECOND: [example.second for example in examples],
        }
        for side in corpus.texts:
            text = apply_rules(columns[side], "en", corpus.rules)
            write_lines(work / "tok" / f"{split}.{side}", text)
            tokens = sum(len(line.split()) for line in columns[side])
            counts[f"{split}.{side}"] = {"lines": len(examples), "tokens": tokens}
        write_lines(work / "tok" / f"{split}.{LABEL}", [example.label for example in examples])
        report(f"write {split}: {len(examples):,} {'pairs' if corpus.raw.pairs else 'sentences'}")
    _write_dictionaries(corpus, args.dictionary, work)
    # fairseq numbers the classes in the order of this file.
    write_lines(work / "bin" / LABEL / "dict.txt", [f"{label} 1" for label in corpus.labels])
    return counts


def _write_dictionaries(corpus: LabeledCorpus, given: Path | None, work: Path) -> None:
    """The same dictionary beside each text, where fairseq expects it."""
    first, *others = [work / "bin" / side / "dict.txt" for side in corpus.texts]
    for path in (first, *others):
        path.parent.mkdir(parents=True)
    if given is None:
        texts = [work / "tok" / f"train.{side}" for side in corpus.texts]
        make_word_dictionary(texts, first, corpus.least_count)
    else:
        shutil.copyfile(given, first)
    for path in others:
        shutil.copyfile(first, path)


def check_dictionary(path: Path) -> None:
    """Raise PrepError if the file is no dictionary of fairseq: a word, a space, a count."""
    if not path.is_file():
        raise PrepError(f"--dictionary is {path}, which is no file; name the dict.txt of a model")
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        word, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not word or not count.isdigit():
            raise PrepError(
                f"--dictionary {path}, line {number:,}, is {line[:40]!r}, not a word and a count; "
                "name the dict.txt of a model"
            )
    if number == 0:
        raise PrepError(f"--dictionary {path} is empty; name the dict.txt of a model")


def check_examples(examples: Examples, labels: tuple[str, ...], pairs: bool = False) -> None:
    """Raise PrepError for an unknown label and for a sentence without a word."""
    if not examples:
        raise PrepError("a split has no sentence")
    for example in examples:
        if example.label not in labels:
            raise PrepError(
                f"{example.place} has the label {example.label[:40]!r}; the labels are "
                f"{', '.join(labels)}"
            )
        if not example.text.strip() or (pairs and not example.second.strip()):
            raise PrepError(f"{example.place} has an empty sentence")
