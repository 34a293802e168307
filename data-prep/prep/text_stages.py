"""A running text for language models: what it declares, and its stages."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prep.binarize import binarize_side, make_word_dictionary
from prep.command_line import add_common_arguments, add_raw_arguments
from prep.exit_status import run_command
from prep.fetch import Source
from prep.layout import LANGUAGE_MODELING
from prep.manifest import Counts, make_recipe
from prep.messages import report
from prep.publishing import publish, publish_binarized
from prep.raw_stage import fetch_or_refuse, fetch_raw, input_digests, raw_folder
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
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    add_raw_arguments(parser)
    return parser.parse_args(argv)


def run_stages(corpus: TextCorpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""
    if args.only == "fetch":
        fetch_raw(corpus, args)
    if args.only in (None, "prepare"):
        _prepare(corpus, args)
    if args.only in (None, "binarize"):
        _binarize(args)


def _prepare(corpus: TextCorpus, args: argparse.Namespace) -> None:
    settings, inputs = {"unit": corpus.unit}, input_digests(corpus, args)
    recipe = make_recipe(corpus.name, SIDE, None, settings, inputs, layout=LANGUAGE_MODELING)

    def build(work: Path) -> dict[str, Counts]:
        fetch_or_refuse(corpus, args)
        raw = raw_folder(args)
        corpus.raw.check(raw)
        for split in SPLITS:
            write_lines(work / "tok" / f"{split}.{SIDE}", corpus.raw.read(raw, split))
            report(f"write {split}")
        make_word_dictionary(work / "tok" / f"train.{SIDE}", work / "bin/dict.txt", least_count=1)
        return {}

    publish(args.out, recipe, build, args.overwrite)


def _binarize(args: argparse.Namespace) -> None:
    def build(work: Path) -> None:
        binarize_side(args.out / "tok", args.out / "bin/dict.txt", work, SIDE, args.workers)

    publish_binarized(args.out, build, args.overwrite and args.only == "binarize")
