#!/usr/bin/env python3
"""Prepare RTE of the GLUE benchmark, Recognizing Textual Entailment: does A entail B?

The raw file is RTE.zip, or train.tsv and dev.tsv from it. The test set is dev, since the labels of
GLUE's test set are not published. The sentences are tokenized like WikiText-103. With --dictionary,
that of a pre-trained model, words that it lacks are unknown.
"""

from __future__ import annotations

from prep.download import Source
from prep.labeled import LabeledCorpus, Tables
from prep.text import WIKITEXT

ARCHIVE = "RTE.zip"
CORPUS = LabeledCorpus(
    name="rte",
    labels=("not_entailment", "entailment"),
    sources=(Source(ARCHIVE, (f"https://dl.fbaipublicfiles.com/glue/data/{ARCHIVE}",)),),
    raw=Tables(
        {"train": "RTE/train.tsv", "valid": "RTE/dev.tsv"},
        archive=ARCHIVE,
        columns=("sentence1", "sentence2", "label"),
        lines={"train": 2490, "valid": 277},
    ),
    rules=WIKITEXT,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
