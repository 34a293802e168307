#!/usr/bin/env python3
"""Prepare sentence pairs of your own for fairseq, from six files.

They are train, valid and test in two languages, such as train.de and train.en, plain or as .gz.
Line N of one language is the translation of line N of the other. Steps: Moses tokenization; joint
BPE; fairseq-preprocess.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from norm_plugin.io.command_line import CommandError
from prep.files import SPLITS
from prep.pairs import Corpus, Languages, plain_files
from prep.stages import run
from prep.text import TextRules


def languages_of(folder: Path) -> Languages:
    """Return the suffixes of the training text; CommandError unless it is two files."""
    names = {path.name.removesuffix(".gz") for path in folder.glob("train.*")}
    suffixes = sorted(name.removeprefix("train.") for name in names)
    if len(suffixes) != 2:
        found = ", ".join(sorted(names)) or "none"
        raise CommandError(
            f"{folder} must have two files of training text, such as train.de and train.en; it has "
            f"{found}"
        )
    return suffixes[0], suffixes[1]


def main(argv: list[str]) -> None:
    """Prepare the corpus in the folder of --raw."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--raw", type=Path)
    folder = parser.parse_known_args(argv)[0].raw
    corpus = Corpus(
        name="own_pairs" if folder is None else folder.resolve().name,
        languages=("source", "target") if folder is None else languages_of(folder),
        sources=(),
        files=plain_files({split: split for split in SPLITS}),
        rules=TextRules(tokenizer="sacremoses"),
        merges=10000,
    )
    corpus.run(argv, __doc__)


if __name__ == "__main__":
    run(main)
