"""A corpus of labeled sentences: what it declares, and its stages fetch, prepare and binarize.

OUT/tok holds NAME.input0, the sentences, and NAME.label, a label a line; OUT/bin/input0 and
OUT/bin/label hold what fairseq's task sentence_prediction reads. Words that are rare in the
training text are unknown.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prep.binarize import binarize_side, make_word_dictionary
from prep.command_line import parser_of
from prep.exit_status import run_command
from prep.fetch import Source
from prep.labeled_files import Examples, LabeledFiles
from prep.layout import SENTENCE_PREDICTION
from prep.manifest import Counts, Recipe, make_recipe
from prep.messages import PrepError, report
from prep.raw_stage import run_raw_stages
from prep.text_files import write_lines
from prep.text_rules import TextRules, apply_rules

TEXT, LABEL = "input0", "label"  # as the task names them


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
            type=int,
            default=1,
            metavar="N",
            help="of the random split into train, valid and test (default: %(default)s)",
        )
    args = parser.parse_args(argv)
    args.split_seed = getattr(args, "split_seed", None)
    return args


def run_stages(corpus: LabeledCorpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""

    def binarize(work: Path) -> None:
        for side in (TEXT, LABEL):
            dictionary = args.out / "bin" / side / "dict.txt"
            binarize_side(args.out / "tok", dictionary, work / side, side, args.workers)

    recipe = partial(_recipe, corpus, args.split_seed)
    run_raw_stages(corpus, args, recipe, partial(_build, corpus, args.split_seed), binarize)


def _recipe(corpus: LabeledCorpus, split_seed: int | None, inputs: dict[str, str]) -> Recipe:
    settings: dict[str, Any] = {
        "labels": list(corpus.labels),
        "lowercase": corpus.rules.lowercase,
        "least_count": corpus.least_count,
    }
    if split_seed is not None:
        settings["split_seed"] = split_seed
    return make_recipe(corpus.name, TEXT, LABEL, settings, inputs, layout=SENTENCE_PREDICTION)


def _build(
    corpus: LabeledCorpus, split_seed: int | None, raw: Path, work: Path
) -> dict[str, Counts]:
    """Fill tok/ and the dictionaries of `work`; returns the counts of the raw text."""
    counts = {}
    for split, examples in corpus.raw.read(raw, split_seed).items():
        check_examples(examples, corpus.labels)
        texts = apply_rules([example.text for example in examples], "en", corpus.rules)
        write_lines(work / "tok" / f"{split}.{TEXT}", texts)
        write_lines(work / "tok" / f"{split}.{LABEL}", [example.label for example in examples])
        tokens = sum(len(example.text.split()) for example in examples)
        counts[f"{split}.{TEXT}"] = {"lines": len(examples), "tokens": tokens}
        report(f"write {split}: {len(examples):,} sentences")
    text = work / "tok" / f"train.{TEXT}"
    make_word_dictionary(text, work / "bin" / TEXT / "dict.txt", corpus.least_count)
    # fairseq numbers the classes in the order of this file.
    write_lines(work / "bin" / LABEL / "dict.txt", [f"{label} 1" for label in corpus.labels])
    return counts


def check_examples(examples: Examples, labels: tuple[str, ...]) -> None:
    """Raise PrepError for an unknown label and for a sentence without a word."""
    if not examples:
        raise PrepError("a split has no sentence")
    for example in examples:
        if example.label not in labels:
            raise PrepError(
                f"{example.place} has the label {example.label[:40]!r}; the labels are "
                f"{', '.join(labels)}"
            )
        if not example.text.strip():
            raise PrepError(f"{example.place} has an empty sentence")
