"""A running text for language models: what it declares, and its stages."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from prep.binarize import binarize_side, make_word_dictionary
from prep.command_line import parser_of
from prep.exit_status import run_command
from prep.fetch import Source
from prep.layout import LANGUAGE_MODELING
from prep.manifest import Counts, Recipe, make_recipe
from prep.messages import report
from prep.raw_stage import run_raw_stages
from prep.running_text import TextFiles
from prep.text_files import SPLITS, write_lines

SIDE = "txt"  # tok/train.txt


@dataclass(frozen=True)
class TextCorpus:
    """Everything in which one running text differs from another."""

    name: str
    """The stem of the corpus's file in data-prep/."""
    sources: tuple[Source, ...]
    """The files to download."""
    raw: TextFiles
    """How the raw files are checked and read."""
    unit: Literal["word", "character"]
    """What a token is, and so of what a loss is. The end of a line is one too."""


def run_text(corpus: TextCorpus, description: str | None) -> None:
    """The command of a corpus: read sys.argv, run the stages, exit with a status."""
    run_command(lambda: run_stages(corpus, parse_args(description)))


def parse_args(description: str | None, argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line; `argv` is by default that of the process."""
    return parser_of(description).parse_args(argv)


def run_stages(corpus: TextCorpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""

    def binarize(work: Path) -> None:
        binarize_side(args.out / "tok", args.out / "bin/dict.txt", work, SIDE, args.workers)

    run_raw_stages(corpus, args, partial(_recipe, corpus), partial(_build, corpus), binarize)


def _recipe(corpus: TextCorpus, inputs: dict[str, str]) -> Recipe:
    settings = {"unit": corpus.unit}
    return make_recipe(corpus.name, SIDE, None, settings, inputs, layout=LANGUAGE_MODELING)


def _build(corpus: TextCorpus, raw: Path, work: Path) -> dict[str, Counts]:
    """Fill tok/ and the dictionary of `work`; no counts, as tok/ holds the whole raw text."""
    for split in SPLITS:
        write_lines(work / "tok" / f"{split}.{SIDE}", corpus.raw.read(raw, split))
        report(f"write {split}")
    make_word_dictionary([work / "tok" / f"train.{SIDE}"], work / "bin/dict.txt", least_count=1)
    return {}
