"""Writes the output of fairseq-preprocess: dictionaries and binary text.

fairseq-preprocess itself is not used: its multiprocessing.Pool waits forever if a worker is killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prep.files import SPLITS, lines_of, report
from prep.folder import Recipe, binary_file, dictionary, sides, text_folder

PADDING_FACTOR = 8  # fairseq-preprocess pads dictionaries to a multiple of it


def make_dictionary(
    texts: Sequence[Path], destinations: Sequence[Path], least_count: int = -1
) -> None:
    """Write the dictionary of the words with at least `least_count` occurrences in all texts."""
    from fairseq.data import Dictionary  # takes seconds, which --help need not

    symbols = Dictionary()
    for text in texts:
        counts: Counter[str] = Counter()
        for line in lines_of(text):
            counts.update(line.split())
            counts[symbols.eos_word] += 1
        for word, count in counts.items():
            symbols.add_symbol(word, count)
    symbols.finalize(threshold=least_count, padding_factor=PADDING_FACTOR)
    for destination in destinations:
        destination.parent.mkdir(parents=True, exist_ok=True)
        symbols.save(str(destination))
    # without the words that only pad the dictionary
    types = sum(count > 0 for count in symbols.count[symbols.nspecial :])
    report(f"dictionary of {' and '.join(text.name for text in texts)}: {types:,} types")


def binarize(out: Path, destination: Path, recipe: Recipe) -> None:
    """Write the binary text of `out` to `destination`."""
    for side in sides(recipe):
        dictionary_path = out / "bin" / dictionary(recipe, side)
        for split in SPLITS:
            stem = destination / binary_file(recipe, split, side)
            stem.parent.mkdir(parents=True, exist_ok=True)
            binarize_text(text_folder(out) / f"{split}.{side}", dictionary_path, stem)
    report(f"binarize: {', '.join(SPLITS)}")


def binarize_text(text: Path, dictionary_path: Path, stem: Path) -> None:
    """Write `stem`.bin and `stem`.idx from a text and its dictionary."""
    import torch
    from fairseq.data import Dictionary, indexed_dataset

    known = Dictionary.load(str(dictionary_path))
    numbers, unknown, end = known.indices, known.unk(), known.eos()
    builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(known))
    for line in lines_of(text):
        tokens = [numbers.get(word, unknown) for word in line.split()]
        builder.add_item(torch.from_numpy(np.array([*tokens, end])))
    builder.finalize(f"{stem}.idx")
