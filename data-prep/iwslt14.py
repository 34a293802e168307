#!/usr/bin/env python3
"""Prepare IWSLT14 (TED talks, German and English) as fairseq's prepare-iwslt14.sh does.

The raw file is de-en.tgz. Steps: leave out addresses and keywords of the talks; Moses tokenization;
keep training pairs of 1 to 175 words with a length ratio of at most 1.5; lowercase; set every 23rd
pair aside for validation; joint BPE; fairseq-preprocess. The test set is dev2010, TEDX.dev2012,
tst2010, tst2011 and tst2012.
"""

from __future__ import annotations

from prep.cleaning import Limits
from prep.corpus import Corpus
from prep.fetch import Source
from prep.markup import segments, talks
from prep.raw_files import ArchiveFiles, Member
from prep.stages import run_corpus
from prep.text_rules import TextRules

LANGUAGES = ("de", "en")
ARCHIVE = "de-en.tgz"
URL = "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
RULES = TextRules(tokenizer="sacremoses", lowercase=True)


def members(split: str, language: str) -> list[Member]:
    """The files of the archive that make one side of a split."""
    if split == "train":
        return [(ARCHIVE, f"de-en/train.tags.de-en.{language}")]
    return [(ARCHIVE, f"de-en/IWSLT14.{name}.de-en.{language}.xml") for name in TEST_SETS]


CORPUS = Corpus(
    name="iwslt14",
    languages=LANGUAGES,
    sources=(Source(ARCHIVE, (f"http://{URL}", f"https://{URL}")),),
    raw=ArchiveFiles(
        LANGUAGES,
        members,
        parsers={"train": talks, "test": segments},
        splits=("train", "test"),  # validation is cut from train
        lines={"test": 6750},
    ),
    rules=RULES,
    other_rules={"test": RULES._replace(plain_apostrophe=True)},
    merges=10000,
    clean_words=Limits(ratio=1.5, shortest=1, longest=175),
    valid_every=23,
)

if __name__ == "__main__":
    run_corpus(CORPUS, __doc__)
