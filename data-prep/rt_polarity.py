#!/usr/bin/env python3
"""Prepare the RT movie reviews (Pang and Lee 2005): sentences with the label 0, bad, or 1, good.

The raw files are rt-polarity.neg and rt-polarity.pos, with 5,331 sentences each, or their archive.
They are tokenized and lower-cased. The corpus has no standard split. As in the AdaNorm paper (Xu et
al. 2019), 8,608 sentences are for training, 964 for validation and 1,089 for the test, drawn at
random with --split-seed; one sentence is not used. Words that occur once in the training text are
unknown.
"""

from __future__ import annotations

from prep.download import Source
from prep.labeled import FileOfLabel, LabeledCorpus
from prep.text import TextRules

ARCHIVE = "rt-polaritydata.tar.gz"
URL = f"https://www.cs.cornell.edu/people/pabo/movie-review-data/{ARCHIVE}"

CORPUS = LabeledCorpus(
    name="rt_polarity",
    labels=("0", "1"),
    sources=(Source(ARCHIVE, (URL,)),),
    raw=FileOfLabel(
        {"0": "rt-polaritydata/rt-polarity.neg", "1": "rt-polaritydata/rt-polarity.pos"},
        archive=ARCHIVE,
        lines=5331,
        sizes={"train": 8608, "valid": 964, "test": 1089},
        # The original is in Windows-1252, many copies are in UTF-8. In Latin-1, dashes would be
        # control characters, and `…` white space.
        encodings=("UTF-8", "cp1252"),
    ),
    rules=TextRules(lowercase=True),
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
