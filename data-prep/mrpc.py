#!/usr/bin/env python3
"""Prepare MRPC, the paraphrase corpus of the GLUE benchmark: do two sentences mean the same?

Its license does not allow others to host it. GLUE's script download_glue_data.py makes
train.tsv and dev.tsv from Microsoft's file; pass their folder, or that of an MRPC.zip with them, as
--raw. The test set is dev, as for all of GLUE here. The sentences are tokenized like WikiText-103.
With --dictionary, that of a pre-trained model, words that it lacks are unknown.
"""

from __future__ import annotations

from prep.labeled import LabeledCorpus, Tables
from prep.text import WIKITEXT

CORPUS = LabeledCorpus(
    name="mrpc",
    labels=("0", "1"),
    sources=(),
    raw=Tables(
        {"train": "MRPC/train.tsv", "valid": "MRPC/dev.tsv"},
        archive="MRPC.zip",
        columns=("#1 String", "#2 String", "Quality"),
        lines={"train": 3668, "valid": 408},
    ),
    rules=WIKITEXT,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
