"""The command line of a corpus: the options that all have, and those of sentence pairs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from prep.corpus import Corpus
from prep.subwords import METHODS
from prep.text_rules import TOKENIZERS

STAGES = ("fetch", "prepare", "binarize")


def at_least(least: int) -> Callable[[str], int]:
    """The argparse type of an integer that is not below `least`."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is not at least {least}")
        return value

    return integer


SEED = at_least(0)  # `random.Random` drops the sign


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The parser of a corpus with raw files, with the flags that all of these have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    _add_raw_arguments(parser)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every corpus has."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the prepared corpus"
    )
    parser.add_argument(
        "--only",
        choices=STAGES,
        help="run only this stage: fetch downloads the raw files, prepare makes the text, "
        "binarize makes bin/ (default: all three, but not what is done already)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="make the corpus again if DIR already holds one"
    )
    parser.add_argument(
        "--workers",
        type=at_least(1),
        default=len(os.sched_getaffinity(0)),  # those of the job, where Slurm shares a machine
        metavar="N",
        help="number of processes (default: one per core); the result does not depend on it",
    )


def _add_raw_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", type=Path, metavar="DIR", help="folder with the raw files (default: download them)"
    )
    parser.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="without --raw: where the downloaded files are kept (default: OUT.download)",
    )


def parse_args(
    corpus: Corpus, description: str | None, argv: list[str] | None = None
) -> argparse.Namespace:
    """The parsed command line of a corpus of pairs; `argv` is by default that of the process."""
    parser = parser_of(description)
    parser.add_argument(
        "--merges",
        type=at_least(1),
        default=corpus.merges,
        metavar="N",
        help="BPE operations, or pieces of sentencepiece (default: "
        + (str(corpus.merges) if corpus.merges else "as many as give the paper's vocabularies")
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
        parser.add_argument(
            "--moses-dir", type=Path, metavar="DIR", help="checkout of Moses, for --tokenizer moses"
        )
    source, target = corpus.languages
    languages = sorted(corpus.languages)
    parser.add_argument("--src", choices=languages, default=source, help="default: %(default)s")
    parser.add_argument("--tgt", choices=languages, default=target, help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.src == args.tgt:
        parser.error(f"--src and --tgt are both {args.src}; pass two languages")
    if corpus.rules.tokenizer and (args.tokenizer == "moses") != (args.moses_dir is not None):
        parser.error("--tokenizer moses and --moses-dir DIR go together")
    return args
