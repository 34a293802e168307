"""Write the output of fairseq-preprocess: dictionaries and binary text.

fairseq-preprocess itself is not used: its multiprocessing.Pool waits forever if a worker is killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_json
from prep.files import SPLITS, lines_of, report
from prep.folder import (
    binary_file,
    dictionary,
    digests_of,
    locked_unless,
    read_manifest,
    sides,
    temporary,
    text_folder,
    tool_versions,
)

BINARIZED = "binarized.json"
PADDING_FACTOR = 8  # fairseq-preprocess pads dictionaries to a multiple of this


def make_dictionary(
    texts: Sequence[Path], destinations: Sequence[Path], least_count: int = -1
) -> None:
    """Write the dictionary of the words with at least `least_count` occurrences in all texts."""
    from fairseq.data import Dictionary  # takes seconds, which --help does not need

    symbols = Dictionary()
    counts: Counter[str] = Counter()
    for line in chain.from_iterable(map(lines_of, texts)):
        counts.update(line.split())
    for word, count in counts.items():
        symbols.add_symbol(word, count)
    symbols.finalize(threshold=least_count, padding_factor=PADDING_FACTOR)
    for destination in destinations:
        destination.parent.mkdir(parents=True, exist_ok=True)
        symbols.save(str(destination))
    # without the words that only pad the dictionary
    types = sum(count > 0 for count in symbols.count[symbols.nspecial :])
    report(f"dictionary of {' and '.join(text.name for text in texts)}: {types:,} types")


def publish_binary(out: Path, overwrite: bool) -> None:
    """Add the binary text to OUT/bin, unless it exists for the text in OUT.

    The record is written last, so after a failure or a kill the text is binarized again.
    """
    out = out.resolve()
    with locked_unless(lambda: not overwrite and _is_binarized(out), out) as needed:
        if not needed:
            report(f"nothing to do: the text is binarized in {out / 'bin'}")
            return
        with temporary(out / "bin") as work:
            files = digests_of(work, binarize(out, work))
            os.sync()
            for name in files:
                os.replace(work / name, out / "bin" / name)
        write_json(out / "bin" / BINARIZED, {**_inputs_of_binary(out), "files": files})
        report(f"done: binarized in {out / 'bin'}")


def _inputs_of_binary(out: Path) -> dict[str, Any]:
    return {"checksum": read_manifest(out)["checksum"], "fairseq": tool_versions().get("fairseq")}


def _is_binarized(out: Path) -> bool:
    """Return whether OUT/bin is complete, and from the text in OUT by this fairseq version."""
    try:
        record = read_json(out / "bin" / BINARIZED)
        files = digests_of(out / "bin", record["files"])
    except (CommandError, FileNotFoundError):
        return False
    return bool(record == {**_inputs_of_binary(out), "files": files})


def binarize(out: Path, destination: Path) -> list[str]:
    """Write the binary text of the corpus in `out` to `destination`; return the files' names."""
    manifest, names = read_manifest(out), []
    for split in SPLITS:
        for side in sides(manifest):
            name = binary_file(manifest, split, side)
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            text = text_folder(out) / f"{split}.{side}"
            binarize_text(text, out / "bin" / dictionary(manifest, side), destination / name)
            names += [f"{name}.bin", f"{name}.idx"]
    report(f"binarize: {', '.join(SPLITS)}")
    return names


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
