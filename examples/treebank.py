"""Dependency treebanks in CoNLL-U, the numbers of their words, and the score of a parser."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = -1
"""The head of the root."""
NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""The number of a line that is not a word: 3-4, two words in one token, or 3.1, an empty node."""


@dataclass
class Sentence:
    """A tree. Position 0 is the root; ``head`` and ``label`` are per word, unused for the root."""

    words: list[str]
    tags: list[str]
    heads: list[int]
    labels: list[str]


def read_conllu(path: Path) -> list[Sentence]:
    """Return the trees of a CoNLL-U file, gzipped or not. Lines with numbers like 3-4 are skipped.

    Raises:
        ValueError: the words of a sentence are not numbered 1, 2, 3 and so on, or their heads form
            no tree.
    """
    sentences = []
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        blocks = stream.read().decode("utf-8-sig").split("\n\n")
    for number, block in enumerate(blocks, 1):
        rows = [row.split("\t") for row in block.split("\n") if row and not row.startswith("#")]
        rows = [row for row in rows if not NO_WORD.fullmatch(row[0])]
        if not rows:
            continue
        heads = [ROOT, *(int(row[6]) for row in rows)]
        if [row[0] for row in rows] != [str(i) for i in range(1, len(heads))]:
            raise ValueError(f"{path}, sentence {number}: the words are not numbered from 1")
        check_tree(heads, f"{path}, sentence {number}")
        words, tags, labels = (
            [name, *(row[column] for row in rows)]
            for name, column in (("<root>", 1), ("<root>", 3), ("", 7))
        )
        sentences.append(Sentence(words, tags, heads, labels))
    return sentences


def read_part(folder: Path, part: str) -> list[Sentence]:
    """Return the trees of ``part``'s file in a folder, *train*.conllu or *train*.conllu.gz.

    Raises:
        ValueError: there is no such file, or several.
    """
    paths = [*folder.glob(f"*{part}*.conllu"), *folder.glob(f"*{part}*.conllu.gz")]
    if len(paths) != 1:
        raise ValueError(f"{folder} has {len(paths)} files *{part}*.conllu or .conllu.gz, not one")
    return read_conllu(paths[0])


def check_tree(heads: list[int], where: str) -> None:
    """Raise ValueError unless every word reaches the root over its heads."""
    for word in range(1, len(heads)):
        path = [word]
        while path[-1] != 0:
            head = heads[path[-1]]
            if not 0 <= head < len(heads) or head in path:
                raise ValueError(f"{where}: the heads form no tree: {path} leads to {head}")
            path.append(head)


def numbered(words: Iterable[str]) -> dict[str, int]:
    """Return a number for each word; 0 means no word, and 1 an unknown one."""
    return {word: i for i, word in enumerate(dict.fromkeys(["<none>", "<unknown>", *words]))}


def uas(heads: Sequence[dict[int, int]], trees: Sequence[Sentence], punctuation: bool) -> float:
    """Return the share of words that have the right head in ``heads``, in percent.

    Args:
        heads: for each sentence, by the position of the word.
        punctuation: count words tagged PUNCT too.
    """
    right = [
        own[word] == tree.heads[word]
        for own, tree in zip(heads, trees)
        for word in range(1, len(tree.words))
        if punctuation or tree.tags[word] != "PUNCT"
    ]
    return 100 * sum(right) / len(right)
