"""The stages of a corpus that has raw files: fetch, prepare, binarize, with their options."""

from __future__ import annotations

import argparse
from pathlib import Path

import fetch
from binarize import binarize, make_dictionaries
from command import add_common_arguments, positive_int
from corpus import publish, publish_binarized
from manifest import Counts, make_recipe, read_manifest
from preparation import Choices, Corpus, write_text
from steps import PrepError, file_digest, report
from subwords import METHODS
from text_rules import TOKENIZERS, check_moses


def parse_args(
    corpus: Corpus, description: str | None, argv: list[str] | None = None
) -> argparse.Namespace:
    """The command line of a corpus; `argv` is sys.argv without its first word."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--raw", type=Path, metavar="DIR", help="folder with the raw files (default: download them)"
    )
    parser.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="without --raw: where to download them to and keep them (default: OUT.download)",
    )
    parser.add_argument(
        "--merges",
        type=positive_int,
        default=corpus.merges,
        metavar="N",
        help="BPE operations, or pieces of sentencepiece (default: "
        + (str(corpus.merges) if corpus.merges else "what gives the paper's vocabularies")
        + ")",
    )
    parser.add_argument(
        "--subword", choices=METHODS, default=METHODS[0], help="default: %(default)s"
    )
    if corpus.rules.tokenizer:
        parser.add_argument(
            "--tokenizer",
            choices=TOKENIZERS,
            default=TOKENIZERS[0],
            help="moses runs Moses' Perl scripts, with the same result (default: %(default)s)",
        )
        parser.add_argument("--moses-dir", type=Path, metavar="DIR", help="for --tokenizer moses")
    source, target = corpus.languages
    languages = sorted(corpus.languages)
    parser.add_argument("--src", choices=languages, default=source, help="default: %(default)s")
    parser.add_argument("--tgt", choices=languages, default=target, help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.src == args.tgt:
        parser.error(f"--src and --tgt are both {args.src}")
    if corpus.rules.tokenizer and (args.tokenizer == "moses") != (args.moses_dir is not None):
        parser.error("--tokenizer moses and --moses-dir DIR go together")
    return args


def run_stages(corpus: Corpus, args: argparse.Namespace) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input."""
    if args.only == "fetch":
        _fetch(corpus, args)
    if args.only in (None, "prepare"):
        _prepare(corpus, args)
    if args.only in (None, "binarize"):
        _binarize(corpus, args)


def _raw_folder(args: argparse.Namespace) -> Path:
    out: Path = args.out.resolve()
    folder: Path = args.raw or args.download_dir or out.with_name(f"{out.name}.download")
    return folder


def _fetch(corpus: Corpus, args: argparse.Namespace) -> None:
    folder = _raw_folder(args)
    if args.raw is None:
        fetch.download_all(corpus.sources, folder)
    corpus.check(folder)
    report(f"done: the raw files lie in {folder}")


def _inputs(corpus: Corpus, args: argparse.Namespace) -> dict[str, str]:
    """Name: SHA-256 of the raw files; they are fetched first where nothing knows that."""
    folder = _raw_folder(args)
    if args.raw is not None:
        return {path.name: file_digest(path) for path in corpus.inputs(folder)}
    digests = fetch.known_digests(corpus.sources, folder)
    if digests is None and (args.out / "manifest.json").is_file() and not args.overwrite:
        # OUT was made from a folder that is gone: what it was made from is written in it.
        digests = read_manifest(args.out).get("inputs")
        if not isinstance(digests, dict) or set(digests) != {s.name for s in corpus.sources}:
            digests = None
    if digests is None:
        _fetch_or_refuse(corpus, args)
        digests = fetch.known_digests(corpus.sources, folder)
        assert digests is not None  # a fetched file has a checksum
    return digests


def _fetch_or_refuse(corpus: Corpus, args: argparse.Namespace) -> None:
    """Bring the raw files, but not where --only asks for another stage."""
    if args.raw is not None:
        return
    folder = _raw_folder(args)
    missing = [source.name for source in corpus.sources if not (folder / source.name).is_file()]
    if args.only is not None and missing:
        raise PrepError(f"{folder} lacks {', '.join(missing)}; run --only fetch first, or --raw")
    fetch.download_all(corpus.sources, folder)


def _prepare(corpus: Corpus, args: argparse.Namespace) -> None:
    tokenizer = ""
    if args.subword != "sentencepiece" and corpus.rules.tokenizer:
        tokenizer = args.tokenizer
    if tokenizer == "moses":
        check_moses(args.moses_dir)
    choices = Choices(
        (args.src, args.tgt),
        args.subword,
        tokenizer,
        str(args.moses_dir.resolve()) if tokenizer == "moses" else "",
        args.merges,
    )
    settings = {
        "merges": args.merges or corpus.types,
        "lowercase": corpus.rules.lowercase,
        "subword": args.subword,
        "tokenizer": tokenizer or "none",
    }
    recipe = make_recipe(corpus.name, args.src, args.tgt, settings, _inputs(corpus, args))

    def build(work: Path) -> dict[str, Counts]:
        _fetch_or_refuse(corpus, args)
        raw = _raw_folder(args)
        corpus.check(raw)
        counts = write_text(corpus, raw, work, choices, args.workers)
        make_dictionaries(work / "bpe", work / "bin", *choices.languages, corpus.joint)
        return counts

    publish(args.out, recipe, build, args.overwrite)


def _binarize(corpus: Corpus, args: argparse.Namespace) -> None:
    def build(work: Path) -> None:
        out = args.out
        binarize(out / "bpe", out / "bin", work, args.src, args.tgt, corpus.joint, args.workers)

    publish_binarized(args.out, build, args.overwrite and args.only == "binarize")
