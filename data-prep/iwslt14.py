#!/usr/bin/env python3
"""Prepare IWSLT14 (TED talks, German and English) as fairseq's prepare-iwslt14.sh does.

The raw file is de-en.tgz. Steps: remove URLs and keywords of the talks; Moses tokenization; keep
training pairs of 1 to 175 words with a length ratio of at most 1.5; lowercase; use every 23rd pair
for validation; joint BPE; fairseq-preprocess. The test set is dev2010, TEDX.dev2012, tst2010,
tst2011 and tst2012.
"""

from __future__ import annotations

from prep.download import Source
from prep.files import RawFile
from prep.pairs import Corpus, segments, talks
from prep.text import Limits, TextRules

LANGUAGES = ("de", "en")
ARCHIVE = "de-en.tgz"
URL = "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
RULES = TextRules(tokenizer="sacremoses", lowercase=True)


def files(split: str, language: str) -> list[RawFile]:
    """Return the files in the archive for one side of a split."""
    if split == "train":
        return [RawFile(f"de-en/train.tags.de-en.{language}", ARCHIVE)]
    return [RawFile(f"de-en/IWSLT14.{name}.de-en.{language}.xml", ARCHIVE) for name in TEST_SETS]


CORPUS = Corpus(
    name="iwslt14",
    languages=LANGUAGES,
    sources=(Source(ARCHIVE, (f"http://{URL}", f"https://{URL}")),),
    files=files,
    parsers={"train": talks, "test": segments},
    lines={"test": 6750},
    rules=RULES,
    other_rules={"test": RULES._replace(plain_apostrophe=True)},
    merges=10000,
    clean_words=Limits(ratio=1.5, shortest=1, longest=175),
    valid_every=23,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
