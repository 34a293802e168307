"""The stages of a corpus with raw files: fetch, prepare, binarize."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.binarize import binarize, make_dictionaries
from prep.command_line import parse_args
from prep.corpus import Choices, Corpus
from prep.exit_status import run_command
from prep.manifest import Counts, Recipe, make_recipe
from prep.pairs import write_text
from prep.publishing import publish, publish_binarized
from prep.raw_stage import fetch_or_refuse, fetch_raw, input_digests, raw_folder
from prep.text_rules import check_moses


def run_corpus(corpus: Corpus, description: str | None) -> None:
    """The command of a corpus: read sys.argv, run the stages, exit with a status."""
    run_command(lambda: run_stages(corpus, parse_args(corpus, description)))


def run_stages(corpus: Corpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""
    if args.only == "fetch":
        fetch_raw(corpus, args)
    if args.only in (None, "prepare"):
        _prepare(corpus, args)
    if args.only in (None, "binarize"):
        _binarize(corpus, args)


# ---- prepare --------------------------------------------------------------------------------


def _choices(corpus: Corpus, args: argparse.Namespace) -> Choices:
    tokenizer = ""
    if args.subword != "sentencepiece" and corpus.rules.tokenizer:
        tokenizer = args.tokenizer
    if tokenizer == "moses":
        check_moses(args.moses_dir)
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


def _prepare(corpus: Corpus, args: argparse.Namespace) -> None:
    choices = _choices(corpus, args)
    recipe = _recipe(corpus, choices, input_digests(corpus, args))

    def build(work: Path) -> dict[str, Counts]:
        fetch_or_refuse(corpus, args)
        raw = raw_folder(args)
        corpus.raw.check(raw)
        counts = write_text(corpus, raw, work, choices, args.workers)
        make_dictionaries(work / "bpe", work / "bin", *choices.languages, corpus.joint)
        return counts

    publish(args.out, recipe, build, args.overwrite)


# ---- binarize -------------------------------------------------------------------------------


def _binarize(corpus: Corpus, args: argparse.Namespace) -> None:
    def build(work: Path) -> None:
        out = args.out
        binarize(out / "bpe", out / "bin", work, args.src, args.tgt, corpus.joint, args.workers)

    publish_binarized(args.out, build, args.overwrite and args.only == "binarize")
