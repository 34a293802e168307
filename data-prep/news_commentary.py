#!/usr/bin/env python3
"""Prepare News Commentary v12 (English and German), a small corpus in the domain of WMT14.

Training text is the News Commentary of WMT17, 270,769 pairs; validation is newstest2013; test is
newstest2014, from the SGM. The text is processed as in wmt14.py, whose training text is 16 times as
long, with a joint BPE of 16,000 operations. Pairs with an empty side are removed.
"""

from __future__ import annotations

from dataclasses import replace

import wmt14
from prep.download import Source
from prep.files import RawFile

NEWS = "training-parallel-nc-v12.tgz"
SERVERS = ("http://data.statmt.org", "https://data.statmt.org")


def files(split: str, language: str) -> list[RawFile]:
    """Return the files for one side of a split."""
    if split == "train":
        return [RawFile(f"training/news-commentary-v12.de-en.{language}", NEWS)]
    return wmt14.files(split, language)


CORPUS = replace(
    wmt14.CORPUS,
    name="news_commentary",
    sources=(
        Source(NEWS, tuple(f"{server}/wmt17/translation-task/{NEWS}" for server in SERVERS)),
        Source(wmt14.DEV, wmt14.urls(wmt14.DEV)),
        Source(wmt14.TEST, wmt14.urls(wmt14.TEST)),
    ),
    files=files,
    lines={"train": 270769, "valid": 3000, "test": 3003},
    merges=16000,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
