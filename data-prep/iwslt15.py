#!/usr/bin/env python3
"""Prepare IWSLT15 (TED talks, English and Vietnamese) in Stanford's form for fairseq.

The files are train, tst2012 (validation) and tst2013 (test), each .en and .vi. They come
tokenised and cased, with the escapes of Moses (&apos; &quot; &#91; ...), and are taken so: BPE
sees the escapes, as it does in the papers, and tokenised BLEU is computed on them; whoever
detokenises unescapes first. raw/ holds the text as it comes. With sentencepiece the escapes are
undone before, since its output is not detokenised. Steps: training pairs without a partner left
out; BPE of each language to the size of the paper's vocabulary; fairseq-preprocess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import steps
from command import run_command
from fetch import Source
from preparation import Corpus
from stages import parse_args, run_stages
from text_rules import TextRules

LANGUAGES = ("en", "vi")
BASE_URL = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
STEMS = {"train": "train", "valid": "tst2012", "test": "tst2013"}
OFFICIAL_LINES = {"valid": 1553, "test": 1268}


def check(folder: Path) -> None:
    """Raise PrepError where a file has not as many lines as its partner, or as it must have."""
    for split, stem in STEMS.items():
        source, target = (folder / f"{stem}.{language}" for language in LANGUAGES)
        steps.check_parallel(source, target, OFFICIAL_LINES.get(split))


def read(folder: Path, split: str, language: str) -> Iterator[str]:
    """The raw lines of one side of a split."""
    return steps.read_lines(folder / f"{STEMS[split]}.{language}")


CORPUS = Corpus(
    name="iwslt15",
    languages=LANGUAGES,
    sources=tuple(
        Source(f"{stem}.{language}", (f"{BASE_URL}/{stem}.{language}",))
        for stem in STEMS.values()
        for language in LANGUAGES
    ),
    check=check,
    read=read,
    rules=TextRules(),
    official_lines=OFFICIAL_LINES,
    types={"en": 7669, "vi": 6669},
    joint=False,
)


def main(argv: list[str] | None = None) -> None:
    """Prepare the corpus; raises PrepError for bad input."""
    run_stages(CORPUS, parse_args(CORPUS, __doc__, argv))


if __name__ == "__main__":
    run_command(main)
