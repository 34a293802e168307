"""The stages of a corpus with raw files: fetch, prepare, binarize."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep import fetch
from prep.binarize import binarize, make_dictionaries
from prep.command_line import parse_args
from prep.corpus import Choices, Corpus
from prep.exit_status import run_command
from prep.manifest import Counts, Recipe, make_recipe, read_manifest
from prep.messages import PrepError, report
from prep.pairs import write_text
from prep.publishing import publish, publish_binarized
from prep.text_files import file_digest
from prep.text_rules import check_moses


def run_corpus(corpus: Corpus, description: str | None) -> None:
    """The command of a corpus: read sys.argv, run the stages, exit with a status."""
    run_command(lambda: run_stages(corpus, parse_args(corpus, description)))


def run_stages(corpus: Corpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""
    if args.only == "fetch":
        _fetch(corpus, args)
    if args.only in (None, "prepare"):
        _prepare(corpus, args)
    if args.only in (None, "binarize"):
        _binarize(corpus, args)


# ---- fetch ----------------------------------------------------------------------------------


def _raw_folder(args: argparse.Namespace) -> Path:
    out: Path = args.out.resolve()
    folder: Path = args.raw or args.download_dir or out.with_name(f"{out.name}.download")
    return folder


def _fetch(corpus: Corpus, args: argparse.Namespace) -> None:
    folder = _raw_folder(args)
    if args.raw is None:
        fetch.download_all(corpus.sources, folder)
    corpus.raw.check(folder)
    report(f"done: the raw files are in {folder}")


def _inputs(corpus: Corpus, args: argparse.Namespace) -> dict[str, str]:
    """Name to SHA-256 of the raw files; files without a known checksum are fetched first."""
    folder = _raw_folder(args)
    if args.raw is not None:
        return {path.name: file_digest(path) for path in corpus.raw.inputs(folder)}
    digests = fetch.known_digests(corpus.sources, folder)
    if digests is None and (args.out / "manifest.json").is_file() and not args.overwrite:
        # OUT was made from a folder that is gone; the manifest names the files it was made from.
        digests = read_manifest(args.out).get("inputs")
        if not isinstance(digests, dict) or set(digests) != {s.name for s in corpus.sources}:
            digests = None
    if digests is None:
        _fetch_or_refuse(corpus, args)
        digests = fetch.known_digests(corpus.sources, folder)
        assert digests is not None  # a fetched file has a checksum
    return digests


def _fetch_or_refuse(corpus: Corpus, args: argparse.Namespace) -> None:
    """Fetch the raw files, unless --only asks for another stage."""
    if args.raw is not None:
        return
    folder = _raw_folder(args)
    missing = [source.name for source in corpus.sources if not (folder / source.name).is_file()]
    if args.only is not None and missing:
        raise PrepError(
            f"{folder} lacks {', '.join(missing)}; run --only fetch first, or pass --raw DIR"
        )
    fetch.download_all(corpus.sources, folder)


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
    recipe = _recipe(corpus, choices, _inputs(corpus, args))

    def build(work: Path) -> dict[str, Counts]:
        _fetch_or_refuse(corpus, args)
        raw = _raw_folder(args)
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
