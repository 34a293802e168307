"""The names of a prepared corpus's files, as each of fairseq's tasks asks for them."""

from __future__ import annotations

import pytest

from prep.layout import LANGUAGE_MODELING, SENTENCE_PREDICTION, binary_files, dictionaries
from prep.layout import text_files as texts

PAIRS = {"source": "en", "target": "de"}
LABELED = {"source": "input0", "target": "label", "layout": SENTENCE_PREDICTION}
TEXT = {"source": "text", "target": None, "layout": LANGUAGE_MODELING}


@pytest.mark.parametrize(
    ("recipe", "text", "dictionary", "binary"),
    [
        (PAIRS, "train.de", "dict.de.txt", "train.en-de.de.bin"),
        (LABELED, "train.label", "label/dict.txt", "label/train.bin"),
        (TEXT, "train.text", "dict.txt", "train.bin"),
    ],
)
def test_the_files_of_a_task(recipe, text, dictionary, binary):
    sides = 2 if recipe["target"] else 1
    for names, one, count in (
        (texts(recipe), text, 3 * sides),
        (dictionaries(recipe), dictionary, sides),
        (binary_files(recipe), binary, 2 * 3 * sides),
    ):
        assert one in names and len(set(names)) == len(names) == count
