#!/usr/bin/env python3
"""Prepare enwik8, the first 100 million bytes of a dump of Wikipedia, for language models.

A token is a byte (papers call it a character) or the end of a line. The raw file is enwik8.zip, or
enwik8 itself. As in all papers, the first 90 million bytes are for training, the next 5 million for
validation and the last 5 million for the test. If a split ends within a line, the end of a line is
added.
"""

from __future__ import annotations

from prep.download import Source
from prep.running_text import ByteFile, TextCorpus

URL = "mattmahoney.net/dc/enwik8.zip"
CORPUS = TextCorpus(
    name="enwik8",
    sources=(Source("enwik8.zip", (f"https://{URL}", f"http://{URL}")),),
    raw=ByteFile(
        "enwik8",
        {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000},
        archive="enwik8.zip",
        begins=b"<mediawiki ",
    ),
    unit="character",
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
