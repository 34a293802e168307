#!/usr/bin/env python3
"""Prepare Multi30k task 1 (captions of images, English and German) for fairseq.

Steps: normalized punctuation, Moses tokenization, lower case, joint BPE, fairseq-preprocess.
The files are train, val and test_2016_flickr, each .en and .de, plain or as .gz.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import steps
from command import run_command
from fetch import Source
from preparation import Corpus
from stages import parse_args, run_stages
from steps import PrepError
from text_rules import TextRules

LANGUAGES = ("en", "de")
# Split: stem of its files, number of lines in each.
FILES = {"train": ("train", 29000), "valid": ("val", 1014), "test": ("test_2016_flickr", 1000)}
BASE_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
DIGESTS = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}


def find_raw(folder: Path) -> dict[str, Path]:
    """The six raw files by their prepared names, `train.en` and so on.

    Raises PrepError where one is missing.
    """
    return {
        f"{split}.{language}": _find_file(folder, f"{stem}.{language}")
        for split, (stem, _) in FILES.items()
        for language in LANGUAGES
    }


def _find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise PrepError(f"neither {name}.gz nor {name} is in {folder}")


def check(folder: Path) -> None:
    """Raise PrepError where a file is damaged or has not the lines that Multi30k has."""
    raw = find_raw(folder)
    for split, (_, lines) in FILES.items():
        steps.check_parallel(raw[f"{split}.en"], raw[f"{split}.de"], lines)


def read(folder: Path, split: str, language: str) -> Iterator[str]:
    """The raw lines of one side of a split."""
    return steps.read_lines(find_raw(folder)[f"{split}.{language}"])


CORPUS = Corpus(
    name="multi30k",
    languages=LANGUAGES,
    sources=tuple(Source(n, (f"{BASE_URL}/{n}",), digest) for n, digest in DIGESTS.items()),
    inputs_in=lambda folder: list(find_raw(folder).values()),
    check=check,
    read=read,
    # Not Moses' own normalization: every result on this corpus rests on that of its port.
    rules=TextRules(normalize="sacremoses", tokenizer="sacremoses", lowercase=True),
    merges=10000,
)


def main(argv: list[str] | None = None) -> None:
    """Prepare the corpus; raises PrepError for bad input."""
    run_stages(CORPUS, parse_args(CORPUS, __doc__, argv))


if __name__ == "__main__":
    run_command(main)
