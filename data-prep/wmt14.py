#!/usr/bin/env python3
"""Prepare WMT14 (English and German) as fairseq's prepare-wmt14en2de.sh does.

Training text is europarl-v7, commoncrawl and news-commentary-v9; validation is newstest2013; test
is newstest2014, from the SGM. Steps: normalize punctuation and remove control characters (not in
the test set); Moses tokenization, with a-b as a @-@ b; joint BPE of 40,000 operations (--merges
32000 is the other usual form); keep training pairs of 1 to 250 subword units with a length ratio of
at most 1.5; fairseq-preprocess. The text is cased. tok/ has all training pairs, including those
that are removed later.
"""

from __future__ import annotations

from prep.download import Source
from prep.files import RawFile
from prep.pairs import Corpus, segments
from prep.text import Limits, TextRules

LANGUAGES = ("en", "de")
EUROPARL = "training-parallel-europarl-v7.tgz"
COMMONCRAWL = "training-parallel-commoncrawl.tgz"
NEWS = "training-parallel-nc-v9.tgz"
DEV = "dev.tgz"
TEST = "test-full.tgz"
# The folder of each archive on the server.
FOLDERS = {
    EUROPARL: "wmt13",
    COMMONCRAWL: "wmt13",
    NEWS: "wmt14",
    DEV: "wmt17/translation-task",
    TEST: "wmt14",
}
RULES = TextRules(normalize="perl", no_control=True, tokenizer="sacremoses", aggressive=True)
TEST_RULES = TextRules(plain_apostrophe=True, tokenizer="sacremoses", aggressive=True)


def files(split: str, language: str) -> list[RawFile]:
    """Return the files for one side of a split."""
    if split == "train":
        return [
            RawFile(f"training/europarl-v7.de-en.{language}", EUROPARL),
            RawFile(f"commoncrawl.de-en.{language}", COMMONCRAWL),
            RawFile(f"training/news-commentary-v9.de-en.{language}", NEWS),
        ]
    if split == "valid":
        return [RawFile(f"dev/newstest2013.{language}", DEV)]
    # the name has "deen" for both directions
    side = "src" if language == "en" else "ref"
    return [RawFile(f"test-full/newstest2014-deen-{side}.{language}.sgm", TEST)]


def urls(archive: str) -> tuple[str, ...]:
    """Return the addresses of an archive, in the order in which they are tried."""
    path = f"{FOLDERS[archive]}/{archive}"
    if archive == DEV:
        return (f"http://data.statmt.org/{path}", f"https://data.statmt.org/{path}")
    return (f"http://statmt.org/{path}", f"https://www.statmt.org/{path}")


CORPUS = Corpus(
    name="wmt14",
    languages=LANGUAGES,
    sources=tuple(Source(archive, urls(archive)) for archive in FOLDERS),
    files=files,
    parsers={"test": segments},
    lines={"test": 3003},
    rules=RULES,
    other_rules={"test": TEST_RULES},
    merges=40000,
    clean_pieces=Limits(ratio=1.5, shortest=1, longest=250),
    compound_split=True,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
