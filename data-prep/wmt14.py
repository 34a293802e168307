#!/usr/bin/env python3
"""Prepare WMT14 (English and German) for fairseq, as its prepare-wmt14en2de.sh does.

Train is europarl-v7, commoncrawl and news-commentary-v9; validation is newstest2013; test is
newstest2014 from the SGM. Steps: normalized punctuation and no control characters (not in the
test set); Moses tokenization with a-b as a @-@ b; joint BPE of 40,000 operations (--merges 32000
is the other usual form); training pairs of 1 to 250 subword units and a ratio of at most 1.5;
fairseq-preprocess. The case stays. tok/ holds the training pairs before they are cleaned.
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

LANGUAGES = ("en", "de")
EUROPARL = "training-parallel-europarl-v7.tgz"
COMMONCRAWL = "training-parallel-commoncrawl.tgz"
NEWS = "training-parallel-nc-v9.tgz"
DEV = "dev.tgz"
TEST = "test-full.tgz"
# Archive: folder on the server.
FOLDERS = {
    EUROPARL: "wmt13",
    COMMONCRAWL: "wmt13",
    NEWS: "wmt14",
    DEV: "wmt17/translation-task",
    TEST: "wmt14",
}
RULES = TextRules(normalize="perl", no_control=True, tokenizer="sacremoses", aggressive=True)
TEST_RULES = TextRules(plain_apostrophe=True, tokenizer="sacremoses", aggressive=True)


def members(split: str, language: str) -> list[tuple[str, str]]:
    """Archive and file in it, of all that makes one side of a split."""
    if split == "train":
        return [
            (EUROPARL, f"training/europarl-v7.de-en.{language}"),
            (COMMONCRAWL, f"commoncrawl.de-en.{language}"),
            (NEWS, f"training/news-commentary-v9.de-en.{language}"),
        ]
    if split == "valid":
        return [(DEV, f"dev/newstest2013.{language}")]
    # deen: the order of the languages in the file's name is the same for both directions.
    side = "src" if language == "en" else "ref"
    return [(TEST, f"test-full/newstest2014-deen-{side}.{language}.sgm")]


def check(folder: Path) -> None:
    """Raise PrepError where an archive is damaged, not to be trusted, or another one."""
    wanted: dict[str, list[str]] = {name: [] for name in FOLDERS}
    for split in ("train", "valid", "test"):
        for language in LANGUAGES:
            for archive, name in members(split, language):
                wanted[archive].append(name)
    for archive, names in wanted.items():
        check_archive(folder / archive, names)


def read(folder: Path, split: str, language: str) -> Iterator[str]:
    """The raw lines of one side of a split."""
    for archive, name in members(split, language):
        lines = member_lines(folder / archive, name)
        yield from markup.segments(lines) if split == "test" else lines


def urls(archive: str) -> tuple[str, ...]:
    """Where an archive lies."""
    path = f"{FOLDERS[archive]}/{archive}"
    if archive == DEV:
        return (f"http://data.statmt.org/{path}", f"https://data.statmt.org/{path}")
    return (f"http://statmt.org/{path}", f"https://www.statmt.org/{path}")


CORPUS = Corpus(
    name="wmt14",
    languages=LANGUAGES,
    sources=tuple(Source(archive, urls(archive)) for archive in FOLDERS),
    check=check,
    read=read,
    rules=RULES,
    other_rules={"test": TEST_RULES},
    official_lines={"test": 3003},
    merges=40000,
    clean_pieces=Limits(ratio=1.5, shortest=1, longest=250),
)


def main(argv: list[str] | None = None) -> None:
    """Prepare the corpus; raises PrepError for bad input."""
    run_stages(CORPUS, parse_args(CORPUS, __doc__, argv))


if __name__ == "__main__":
    run_command(main)
