#!/usr/bin/env python3
"""Prepare IWSLT15 (TED talks, English and Vietnamese) in Stanford's form for fairseq.

The raw files are train, tst2012 (validation) and tst2013 (test), each as .en and .vi. They are
tokenized and cased, with the escapes of Moses (&apos; &quot; &#91; ...). As in the papers, BPE is
learned and tokenized BLEU is computed with these escapes; unescape before you detokenize. raw/ has
the original text. With sentencepiece the text is unescaped first, because its output is not
detokenized. Steps: remove training pairs with an empty side; BPE of each language up to the size of
the paper's vocabulary; fairseq-preprocess.
"""

from __future__ import annotations

from prep.download import Source
from prep.pairs import Corpus, plain_files
from prep.text import TextRules

BASE_URL = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
TRAINING_LINES = 133_317
# SHA-256 of Stanford's files; the two of train are not checked.
DIGESTS = {
    "tst2012.en": "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2",
    "tst2012.vi": "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0",
    "tst2013.en": "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df",
    "tst2013.vi": "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd",
}
LANGUAGES = ("en", "vi")
STEMS = {"train": "train", "valid": "tst2012", "test": "tst2013"}
NAMES = [f"{stem}.{language}" for stem in STEMS.values() for language in LANGUAGES]
CORPUS = Corpus(
    name="iwslt15",
    languages=LANGUAGES,
    sources=tuple(
        Source(n, (f"{BASE_URL}/{n}",), DIGESTS.get(n), None if n in DIGESTS else TRAINING_LINES)
        for n in NAMES
    ),
    files=plain_files(STEMS),
    lines={"valid": 1553, "test": 1268},
    rules=TextRules(),
    types={"en": 7669, "vi": 6669},
    joint=False,
)

if __name__ == "__main__":
    CORPUS.main(__doc__)
