"""Where the text, the dictionaries and the binary files of a prepared corpus lie.

Each of fairseq's tasks expects its data in a layout of its own. A manifest names it as `layout`;
without that entry it is the one of translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prep.text_files import SPLITS


class Layout(NamedTuple):
    """File names below bin/. A side is what follows the name of a split: a language, a label."""

    dictionary: str
    binary: str  # without its suffix


TRANSLATION = "translation"
SENTENCE_PREDICTION = "sentence_prediction"
LANGUAGE_MODELING = "language_modeling"
LAYOUTS = {
    TRANSLATION: Layout("dict.{side}.txt", "{split}.{source}-{target}.{side}"),
    SENTENCE_PREDICTION: Layout("{side}/dict.txt", "{side}/{split}"),
    LANGUAGE_MODELING: Layout("dict.txt", "{split}"),
}
"""By fairseq's name of the task."""


def sides(recipe: Mapping[str, Any]) -> list[str]:
    """The sides of a corpus: two languages, one or two texts and a label, or plain text alone."""
    return [recipe[name] for name in ("source", "second", "target") if recipe.get(name)]


def text_files(recipe: Mapping[str, Any]) -> list[str]:
    """The names of the text files, such as train.en, in each folder of text."""
    return [f"{split}.{side}" for split in SPLITS for side in sides(recipe)]


def dictionaries(recipe: Mapping[str, Any]) -> list[str]:
    """The names of the dictionaries below bin/."""
    layout = _layout(recipe)
    return [layout.dictionary.format(side=side) for side in sides(recipe)]


def binary_files(recipe: Mapping[str, Any]) -> list[str]:
    """The names of the binary files below bin/."""
    layout = _layout(recipe)
    names = {"source": recipe["source"], "target": recipe.get("target")}
    return [
        f"{layout.binary.format(split=split, side=side, **names)}.{suffix}"
        for split in SPLITS
        for side in sides(recipe)
        for suffix in ("bin", "idx")
    ]


def _layout(recipe: Mapping[str, Any]) -> Layout:
    return LAYOUTS[recipe.get("layout", TRANSLATION)]
