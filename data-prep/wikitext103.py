#!/usr/bin/env python3
"""Prepare WikiText-103 for fairseq's language models.

The raw file is wikitext-103-v1.zip, or wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.
The text is not changed: its authors have tokenized it, with <unk>.
"""

from __future__ import annotations

from prep.download import Source
from prep.files import SPLITS
from prep.running_text import TextCorpus, WordFiles

ARCHIVE = "wikitext-103-v1.zip"
FOLDERS = ("s3.amazonaws.com/research.metamind.io/wikitext", "wikitext.smerity.com")
CORPUS = TextCorpus(
    name="wikitext103",
    sources=(Source(ARCHIVE, tuple(f"https://{folder}/{ARCHIVE}" for folder in FOLDERS)),),
    raw=WordFiles(
        {split: f"wikitext-103/wiki.{split}.tokens" for split in SPLITS},
        archive=ARCHIVE,
        lines={"train": 1801350, "valid": 3760, "test": 4358},
    ),
    unit="word",
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
