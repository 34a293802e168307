"""What fairseq-preprocess makes, in two steps: first the dictionaries, then the binary text."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prep import child_processes
from prep.messages import PrepError, report
from prep.text_files import SPLITS, read_lines

if TYPE_CHECKING:
    from fairseq.data import Dictionary

PADDING_FACTOR = 8  # fairseq-preprocess pads dictionaries to a multiple of it


def make_dictionaries(text: Path, destination: Path, source: str, target: str, joint: bool) -> None:
    """Write `destination`/dict.* from `text`/train.*; `joint`: one dictionary for both sides."""
    from fairseq.data import Dictionary  # takes seconds; --help need not wait for it

    destination.mkdir(parents=True, exist_ok=True)
    groups = [[source, target]] if joint else [[source], [target]]
    for languages in groups:
        words = Dictionary()
        for language in languages:
            for word, count in _count_tokens(text / f"train.{language}", words.eos_word).items():
                words.add_symbol(word, count)
        words.finalize(padding_factor=PADDING_FACTOR)
        for language in languages:
            words.save(str(destination / f"dict.{language}.txt"))
        report(f"dictionary of {' and '.join(languages)}: {_types(words):,} types")


def make_word_dictionary(texts: Sequence[Path], destination: Path, least_count: int) -> None:
    """Write the dictionary of the words that occur at least so often in all texts together."""
    from fairseq.data import Dictionary  # takes seconds; --help need not wait for it

    words = Dictionary()
    for text in texts:
        for word, count in _count_tokens(text, words.eos_word).items():
            words.add_symbol(word, count)
    words.finalize(threshold=least_count, padding_factor=PADDING_FACTOR)
    destination.parent.mkdir(parents=True, exist_ok=True)
    words.save(str(destination))
    names = " and ".join(text.name for text in texts)
    report(f"dictionary of {names}: {_types(words):,} types")


def _types(words: Dictionary) -> int:
    """The number of words, without those that only fill the dictionary up (PADDING_FACTOR)."""
    return sum(count > 0 for count in words.count[words.nspecial :])


def _count_tokens(path: Path, end: str) -> Counter[str]:
    """How often each token occurs, and `end` once a line.

    Dictionary.add_file_to_dictionary is not used, because its multiprocessing.Pool waits forever
    when a worker is killed.
    """
    counts: Counter[str] = Counter()
    for line in read_lines(path):
        counts.update(line.split())
        counts[end] += 1
    return counts


def binarize(
    text: Path,
    dictionaries: Path,
    destination: Path,
    source: str,
    target: str,
    joint: bool,
    workers: int,
) -> None:
    """Write the binary form of `text`/{train,valid,test}.* by the given dictionaries."""
    options = [f"--{split}pref={text / split}" for split in SPLITS]
    options.append(f"--srcdict={dictionaries / f'dict.{source}.txt'}")
    if joint:
        options.append("--joined-dictionary")
    else:
        options.append(f"--tgtdict={dictionaries / f'dict.{target}.txt'}")
    options += ["--source-lang", source, "--target-lang", target]
    _preprocess(options, destination, workers)
    report(f"binarize: {', '.join(SPLITS)}")


def binarize_side(text: Path, dictionary: Path, destination: Path, side: str, workers: int) -> None:
    """Write the binary form of one side, `text`/{train,valid,test}.`side`, by its dictionary."""
    options = [f"--{split}pref={text / f'{split}.{side}'}" for split in SPLITS]
    _preprocess([*options, "--only-source", f"--srcdict={dictionary}"], destination, workers)
    # fairseq writes it without its flags "#fairseq:overwrite", and then cannot read it again.
    shutil.copyfile(dictionary, destination / "dict.txt")
    report(f"binarize {side}: {', '.join(SPLITS)}")


def _preprocess(options: list[str], destination: Path, workers: int) -> None:
    options = [*options, f"--destdir={destination}", "--workers", str(workers)]
    finished = child_processes.run_module("fairseq_cli.preprocess", options)
    if finished.returncode < 0:
        killed = f"fairseq-preprocess was killed by signal {-finished.returncode}"
        raise PrepError(f"{killed}, {child_processes.MEMORY}")
    if finished.returncode != 0:
        lines = finished.stdout.strip().splitlines() or ["it printed nothing"]
        raise PrepError(f"fairseq-preprocess ended with {finished.returncode}: {lines[-1]}")
    # The log holds only paths in a folder that is about to be renamed.
    (destination / "preprocess.log").unlink()
