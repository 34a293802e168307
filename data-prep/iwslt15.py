#!/usr/bin/env python3
"""Prepare IWSLT15 (TED talks, English and Vietnamese) in Stanford's form for fairseq.

The files are train, tst2012 (validation) and tst2013 (test), each .en and .vi. They come
tokenized and cased, with the escapes of Moses (&apos; &quot; &#91; ...), and are taken so: BPE
sees the escapes, as it does in the papers, and tokenized BLEU is computed on them; whoever
detokenizes unescapes first. raw/ holds the text as it comes. With sentencepiece the escapes are
undone before, since its output is not detokenized. Steps: training pairs without a partner left
out; BPE of each language to the size of the paper's vocabulary; fairseq-preprocess.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
# SHA-256 of the files as Stanford publishes them; that of train is recorded at its first download.
DIGESTS = {
    "tst2012.en": "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2",
    "tst2012.vi": "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0",
    "tst2013.en": "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df",
    "tst2013.vi": "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd",
}


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
        Source(name, (f"{BASE_URL}/{name}",), DIGESTS.get(name))
        for name in (f"{stem}.{language}" for stem in STEMS.values() for language in LANGUAGES)
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
