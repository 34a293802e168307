#!/usr/bin/env python3
"""Prepare Multi30k task 1 (captions of images, English and German) for fairseq.

Steps: normalize punctuation; Moses tokenization; lowercase; joint BPE; fairseq-preprocess.
The raw files are train, val and test_2016_flickr, each as .en and .de, plain or as .gz.
"""

from __future__ import annotations

from prep.download import Source
from prep.pairs import Corpus, plain_files
from prep.text import TextRules

BASE_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
DIGESTS = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
CORPUS = Corpus(
    name="multi30k",
    languages=("en", "de"),
    sources=tuple(Source(n, (f"{BASE_URL}/{n}",), digest) for n, digest in DIGESTS.items()),
    files=plain_files(STEMS),
    lines={"train": 29000, "valid": 1014, "test": 1000},
    # The port of Moses' normalization differs slightly; all results on this corpus depend on it.
    rules=TextRules(normalize="sacremoses", tokenizer="sacremoses", lowercase=True),
    merges=10000,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
