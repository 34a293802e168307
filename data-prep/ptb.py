#!/usr/bin/env python3
"""Prepare Mikolov's version of the Penn Treebank for fairseq's language models.

The raw file is simple-examples.tgz, or ptb.train.txt, ptb.valid.txt and ptb.test.txt. The text is
not changed: it has 10,000 types, lowercase, with <unk>, and N for numbers.
"""

from __future__ import annotations

from prep.download import Source
from prep.files import SPLITS
from prep.running_text import TextCorpus, WordFiles

ARCHIVE = "simple-examples.tgz"
CORPUS = TextCorpus(
    name="ptb",
    sources=(Source(ARCHIVE, (f"http://www.fit.vutbr.cz/~imikolov/rnnlm/{ARCHIVE}",)),),
    raw=WordFiles(
        {split: f"simple-examples/data/ptb.{split}.txt" for split in SPLITS},
        archive=ARCHIVE,
        lines={"train": 42068, "valid": 3370, "test": 3761},
    ),
    unit="word",
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
