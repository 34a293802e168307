"""The stages of a corpus of sentence pairs: fetch, prepare, binarize."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from prep.binarize import binarize, make_dictionaries
from prep.command_line import parse_args
from prep.corpus import Choices, Corpus
from prep.exit_status import run_command
from prep.manifest import Counts, Recipe, make_recipe
from prep.pairs import write_text
from prep.raw_stage import run_raw_stages
from prep.text_rules import check_moses


def run_corpus(corpus: Corpus, description: str | None) -> None:
    """The command of a corpus: read sys.argv, run the stages, exit with a status."""
    run_command(lambda: run_stages(corpus, parse_args(corpus, description)))


def run_stages(corpus: Corpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""
    choices = _choices(corpus, args)
    if choices.tokenizer == "moses" and args.only in (None, "prepare"):
        check_moses(args.moses_dir)  # before anything is downloaded

    def build(raw: Path, work: Path) -> dict[str, Counts]:
        counts = write_text(corpus, raw, work, choices, args.workers)
        make_dictionaries(work / "bpe", work / "bin", *choices.languages, corpus.joint)
        return counts

    def to_binary(work: Path) -> None:
        text, dictionaries = args.out / "bpe", args.out / "bin"
        binarize(text, dictionaries, work, *choices.languages, corpus.joint, args.workers)

    run_raw_stages(corpus, args, partial(_recipe, corpus, choices), build, to_binary)


def _choices(corpus: Corpus, args: argparse.Namespace) -> Choices:
    tokenizer = ""
    if args.subword != "sentencepiece" and corpus.rules.tokenizer:
        tokenizer = args.tokenizer
    moses_dir = str(args.moses_dir.resolve()) if tokenizer == "moses" else ""
    return Choices((args.src, args.tgt), args.subword, tokenizer, moses_dir, args.merges)


def _recipe(corpus: Corpus, choices: Choices, inputs: dict[str, str]) -> Recipe:
    settings = {
        "merges": choices.merges or corpus.types,
        "lowercase": corpus.rules.lowercase,
        "subword": choices.subword,
        "tokenizer": choices.tokenizer or "none",
    }
    return make_recipe(corpus.name, *choices.languages, settings, inputs, corpus.scoring)
