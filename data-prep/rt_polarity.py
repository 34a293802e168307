#!/usr/bin/env python3
"""Prepare the RT movie reviews (Pang and Lee 2005): sentences with the label 0, bad, or 1, good.

The raw files are rt-polarity.neg and rt-polarity.pos, with 5,331 sentences each, or the archive
that holds them. They come tokenized and lower-cased. The corpus has no split of its own. As in the
AdaNorm paper (Xu et al. 2019), 8,608 sentences are for training, 964 for validation and 1,089 for
the test, drawn at random with --split-seed; the one that is left over is not used. A word that
occurs once in the training text is unknown.
"""

from __future__ import annotations

from prep.fetch import Source
from prep.labeled import LabeledCorpus, run_labeled
from prep.labeled_files import FileOfLabel
from prep.messages import PrepError
from prep.text_rules import TextRules

ARCHIVE = "rt-polaritydata.tar.gz"
URL = f"https://www.cs.cornell.edu/people/pabo/movie-review-data/{ARCHIVE}"


def decode(lines: list[str]) -> list[str]:
    """The lines of a file in Windows-1252, as the original is, or in UTF-8, as many copies are.

    In Latin-1, the byte of a dash is a control character, and that of `…` is white space.

    Args:
        lines: read as Latin-1, which keeps every byte.

    Raises:
        PrepError: the file is in neither encoding.
    """
    raw = [line.encode("latin-1") for line in lines]
    for encoding in ("utf-8", "cp1252"):
        try:
            return [line.decode(encoding) for line in raw]
        except UnicodeDecodeError:
            continue
    raise PrepError("a file of RT is neither in Windows-1252 nor in UTF-8; download it again")


CORPUS = LabeledCorpus(
    name="rt_polarity",
    labels=("0", "1"),
    sources=(Source(ARCHIVE, (URL,)),),
    raw=FileOfLabel(
        members={
            "0": "rt-polaritydata/rt-polarity.neg",
            "1": "rt-polaritydata/rt-polarity.pos",
        },
        archive=ARCHIVE,
        lines=5331,
        sizes={"train": 8608, "valid": 964, "test": 1089},
        encoding="latin-1",
        decoded=decode,
    ),
    rules=TextRules(lowercase=True),
)

if __name__ == "__main__":
    run_labeled(CORPUS, __doc__)
