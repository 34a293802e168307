"""Dependency treebanks in CoNLL-U, the numbers of their words, and the score of a parser."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = -1
"""The head of the root."""
NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""The number of a line that is no word: 3-4, two words in one token, and 3.1, an empty node."""


@dataclass
class Sentence:
    """A tree. Position 0 is the root; head, label: of each word, of the root nothing."""

    words: list[str]
    tags: list[str]
    heads: list[int]
    labels: list[str]


def read_conllu(path: Path) -> list[Sentence]:
    """The trees of a CoNLL-U file. Lines with a number such as 3-4 or 3.1 are left out.

    Raises:
        ValueError: the file cannot be read, or a line has not ten columns, or the words of a
            sentence are not numbered 1, 2, 3 and so on, or their heads form no tree.
    """
    blocks = read_text(path).split("\n\n")
    sentences, line = [], 1
    for block in blocks:
        rows = [row.split("\t") for row in block.split("\n") if row and not row.startswith("#")]
        if bad := [row for row in rows if len(row) != 10]:
            raise ValueError(f"{path}, sentence at line {line}: no CoNLL-U line: {bad[0]}")
        rows = [row for row in rows if not NO_WORD.fullmatch(row[0])]
        if rows:
            forms, _, tags = (["<root>", *column] for column in list(zip(*rows))[1:4])
            try:
                check_numbers([row[0] for row in rows])
                heads = [ROOT, *map(read_head, rows)]
                check_tree(heads, forms)
            except ValueError as error:
                raise ValueError(f"{path}, sentence at line {line}: {error}") from None
            sentences.append(Sentence(forms, tags, heads, ["", *(row[7] for row in rows)]))
        line += block.count("\n") + 2
    return sentences


def read_text(path: Path) -> str:
    """The text of a file, gzipped or not; raises ValueError where it cannot be read."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            return str(stream.read())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def read_part(folder: Path, part: str) -> list[Sentence]:
    """The trees of the one file of ``part`` in a folder, *train*.conllu or *train*.conllu.gz.

    Raises ValueError where there is no such file, or several, or it has no tree.
    """
    found = sorted([*folder.glob(f"*{part}*.conllu"), *folder.glob(f"*{part}*.conllu.gz")])
    if len(found) != 1:
        raise ValueError(f"{folder} has {len(found)} files *{part}*.conllu or .conllu.gz, not one")
    trees = read_conllu(found[0])
    if not trees:
        raise ValueError(f"{found[0]} has no tree")
    return trees


def read_head(row: list[str]) -> int:
    """The head of a word; raises ValueError where that is no number from 0."""
    number, form, head = row[0], row[1], row[6]
    if not head.isdecimal():
        raise ValueError(f"word {number} ({form}) has the head {head!r}, not a number from 0")
    return int(head)


def check_numbers(numbers: list[str]) -> None:
    """Raise ValueError unless the words are numbered 1 to n, as their heads count on."""
    for position, number in enumerate(numbers, 1):
        if number != str(position):
            raise ValueError(f"word {position} has the number {number}")


def check_tree(heads: list[int], words: list[str]) -> None:
    """Raise ValueError unless every word reaches the root over its heads."""
    for word in range(1, len(heads)):
        path = [word]
        while path[-1] != 0:
            head = heads[path[-1]]
            if not 0 <= head < len(heads):
                raise ValueError(f"word {path[-1]} ({words[path[-1]]}) has the head {head}")
            if head in path:
                cycle = [*path[path.index(head) :], head]
                shown = " -> ".join(f"{one} ({words[one]})" for one in cycle)
                raise ValueError(f"the heads form a cycle, so this is no tree: {shown}")
            path.append(head)


def numbered(words: Iterable[str]) -> dict[str, int]:
    """A number for each word; 0 means that there is no word, and 1 an unknown one."""
    return {word: i for i, word in enumerate(dict.fromkeys(["<none>", "<unknown>", *words]))}


def uas(heads: Sequence[dict[int, int]], trees: Sequence[Sentence], punctuation: bool) -> float:
    """The share of words that have the right head in ``heads``, in percent.

    Args:
        heads: of each sentence, by the position of the word.
        punctuation: count words tagged PUNCT too.

    Raises:
        ValueError: there is no word to count.
    """
    right = [
        found[word] == tree.heads[word]
        for found, tree in zip(heads, trees)
        for word in range(1, len(tree.words))
        if punctuation or tree.tags[word] != "PUNCT"
    ]
    if not right:
        raise ValueError("there is no word to score: all are tagged PUNCT")
    return 100 * sum(right) / len(right)
