#!/usr/bin/env python3
"""Prepare tinyshakespeare with a test text: the second half of the usual validation text.

A study that tunes on the validation text needs another text for its scores. The training text is
that of tinyshakespeare.py. The first half of the last 10 % is for validation, the second half for
the test.
"""

from __future__ import annotations

from dataclasses import replace

import tinyshakespeare
from prep.running_text import ByteFile

CORPUS = replace(
    tinyshakespeare.CORPUS,
    name="tinyshakespeare_halves",
    raw=ByteFile(
        "input.txt",
        {"train": 1003854, "valid": 55770, "test": 55770},
        begins=b"First Citizen:\n",
    ),
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
