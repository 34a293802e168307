#!/usr/bin/env python3
"""Prepare tinyshakespeare, the characters of some plays, for fairseq's language models.

A token is a character or the end of a line. The raw file is input.txt. The first 90 % are for
training and the rest is for validation, as usual; there is no test set, so the validation text is
used in its place. The training text ends within a line, so the end of a line is added.
"""

from __future__ import annotations

from prep.download import Source
from prep.running_text import ByteFile, TextCorpus

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
DIGEST = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
CORPUS = TextCorpus(
    name="tinyshakespeare",
    sources=(Source("input.txt", (URL,), DIGEST),),
    # nanoGPT's split: int(0.9 * 1,115,394) bytes, and the rest
    raw=ByteFile("input.txt", {"train": 1003854, "valid": 111540}, begins=b"First Citizen:\n"),
    unit="character",
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
