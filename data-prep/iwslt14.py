#!/usr/bin/env python3
"""Prepare IWSLT14 (TED talks, German and English) for fairseq, as everybody does.

The file is de-en.tgz. Steps: talks without addresses and keywords; Moses tokenization; training
pairs of 1 to 175 words and a ratio of at most 1.5; lower case; every 23rd pair for validation;
joint BPE; fairseq-preprocess. Test is dev2010, TEDX.dev2012, tst2010, tst2011 and tst2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import markup
from archives import check_archive, member_lines
from cleaning import Limits
from command import run_command
from fetch import Source
from preparation import Corpus
from stages import parse_args, run_stages
from text_rules import TextRules

LANGUAGES = ("de", "en")
ARCHIVE = "de-en.tgz"
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
RULES = TextRules(tokenizer="sacremoses", lowercase=True)


def members(split: str, language: str) -> list[str]:
    """The files of the archive that make one side of a split; validation is cut from train."""
    if split == "train":
        return [f"de-en/train.tags.de-en.{language}"]
    return [f"de-en/IWSLT14.{name}.de-en.{language}.xml" for name in TEST_SETS]


def check(folder: Path) -> None:
    """Raise PrepError where the archive is damaged, not to be trusted, or another one."""
    wanted = [
        name for split in ("train", "test") for side in LANGUAGES for name in members(split, side)
    ]
    check_archive(folder / ARCHIVE, wanted)


def read(folder: Path, split: str, language: str) -> Iterator[str]:
    """The raw lines of one side of a split."""
    for name in members(split, language):
        lines = member_lines(folder / ARCHIVE, name)
        yield from markup.talks(lines) if split == "train" else markup.segments(lines)


CORPUS = Corpus(
    name="iwslt14",
    languages=LANGUAGES,
    sources=(
        Source(
            ARCHIVE,
            (
                "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
            ),
        ),
    ),
    check=check,
    read=read,
    rules=RULES,
    other_rules={"test": RULES._replace(plain_apostrophe=True)},
    official_lines={"test": 6750},
    merges=10000,
    clean_words=Limits(ratio=1.5, shortest=1, longest=175),
    valid_every=23,
)


def main(argv: list[str] | None = None) -> None:
    """Prepare the corpus; raises PrepError for bad input."""
    run_stages(CORPUS, parse_args(CORPUS, __doc__, argv))


if __name__ == "__main__":
    run_command(main)
