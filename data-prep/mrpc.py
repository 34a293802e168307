#!/usr/bin/env python3
"""Prepare MRPC, the paraphrase corpus of the GLUE benchmark: do two sentences mean the same?

Its license does not let others host it. GLUE's own script, download_glue_data.py, makes train.tsv
and dev.tsv of Microsoft's file; name their folder, or that of an MRPC.zip with them, by --raw. Test
is the text of dev, as for all of GLUE here. The sentences are tokenized like WikiText-103. Words
that are not in --dictionary, that of a pre-trained model, are unknown.
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
