#!/usr/bin/env python3
"""Prepare WikiText-2 for fairseq's language models.

The raw file is wikitext-2-v1.zip, or wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens. The
text is not changed: its authors have tokenized it, with <unk>.
"""

from __future__ import annotations

from dataclasses import replace

import wikitext103
from prep.download import Source
from prep.files import SPLITS
from prep.running_text import WordFiles

ARCHIVE = "wikitext-2-v1.zip"
CORPUS = replace(
    wikitext103.CORPUS,
    name="wikitext2",
    sources=(
        Source(ARCHIVE, tuple(f"https://{folder}/{ARCHIVE}" for folder in wikitext103.FOLDERS)),
    ),
    raw=WordFiles(
        {split: f"wikitext-2/wiki.{split}.tokens" for split in SPLITS},
        archive=ARCHIVE,
        lines={"train": 36718, "valid": 3760, "test": 4358},
    ),
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
