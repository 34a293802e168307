"""Raw files of labeled sentences: a file a label, or a file a split."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from prep.archives import check_archive, member_lines
from prep.messages import PrepError
from prep.text_files import read_lines


class Example(NamedTuple):
    """A sentence, or two, with their label, and where they stand, for errors."""

    text: str
    label: str
    place: str  # "FILE, line 7,"
    second: str = ""


Examples = list[Example]


class LabeledFiles(Protocol):
    """What the preparation asks of the raw files in a folder."""

    @property
    def random_split(self) -> bool:
        """Whether the corpus has no split of its own and is split by a seed."""

    @property
    def pairs(self) -> bool:
        """Whether the label is that of two sentences."""

    def inputs(self, folder: Path) -> list[Path]:
        """All raw files; raises PrepError if one is missing."""

    def check(self, folder: Path) -> None:
        """Raise PrepError if a file is damaged, or not the expected one."""

    def read(self, folder: Path, split_seed: int | None) -> dict[str, Examples]:
        """The sentences of each split."""


@dataclass(frozen=True)
class FileOfSplit:
    """One plain file a split, whose lines are a label, a space and a sentence."""

    names: Mapping[str, str]
    """The file of each split."""
    lines: Mapping[str, int]
    """The published number of lines of each split; another number is an error."""
    random_split = False
    pairs = False

    def inputs(self, folder: Path) -> list[Path]:
        return [_existing(folder / name) for name in self.names.values()]

    def check(self, folder: Path) -> None:
        for split, name in self.names.items():
            found = sum(1 for _ in read_lines(folder / name))
            check_count(f"{folder / name}", found, self.lines[split])

    def read(self, folder: Path, split_seed: int | None) -> dict[str, Examples]:
        return {split: _labeled_lines(folder / name) for split, name in self.names.items()}


def _labeled_lines(path: Path) -> Examples:
    examples = []
    for number, line in enumerate(read_lines(path), 1):
        label, _, text = line.partition(" ")
        examples.append(Example(text, label, f"{path}, line {number:,},"))
    return examples


@dataclass(frozen=True)
class FileOfLabel:
    """One file a label, plain or in an archive, of which a seed draws the splits."""

    members: Mapping[str, str]
    """The file of each label in the archive. Outside it, the file has the last part of the name."""
    archive: str
    lines: int
    """The published number of lines of each file; another number is an error."""
    sizes: Mapping[str, int]
    """The number of sentences of each split."""
    encoding: str = "UTF-8"
    decoded: Callable[[list[str]], list[str]] = list
    """What is done to the lines of a file after they are decoded."""
    random_split = True
    pairs = False

    def inputs(self, folder: Path) -> list[Path]:
        if (folder / self.archive).is_file():
            return [folder / self.archive]
        plain = [folder / Path(name).name for name in self.members.values()]
        if missing := [path.name for path in plain if not path.is_file()]:
            raise PrepError(f"{folder} holds neither {self.archive} nor {', '.join(missing)}")
        return plain

    def check(self, folder: Path) -> None:
        if (folder / self.archive).is_file():
            check_archive(folder / self.archive, self.members.values())
        for label in self.members:
            check_count(self._file(folder, label), len(self._lines(folder, label)), self.lines)

    def read(self, folder: Path, split_seed: int | None) -> dict[str, Examples]:
        """The splits that a seed draws; what is left over is in none of them."""
        examples = [
            Example(text, label, f"{self._file(folder, label)}, line {number:,},")
            for label in self.members
            for number, text in enumerate(self._lines(folder, label), 1)
        ]
        draw = random.Random(split_seed).random  # its sequence is the same in every Python
        keys = [draw() for _ in examples]
        order = iter(sorted(range(len(examples)), key=keys.__getitem__))
        return {
            split: [examples[next(order)] for _ in range(size)]
            for split, size in self.sizes.items()
        }

    def _lines(self, folder: Path, label: str) -> list[str]:
        member = self.members[label]
        if (folder / self.archive).is_file():
            return self.decoded(list(member_lines(folder / self.archive, member, self.encoding)))
        return self.decoded(list(read_lines(folder / Path(member).name, self.encoding)))

    def _file(self, folder: Path, label: str) -> str:
        member = self.members[label]
        if (folder / self.archive).is_file():
            return f"{member} in {folder / self.archive}"
        return str(folder / Path(member).name)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise PrepError(f"{path} is missing")
    return path


def check_count(name: str, found: int, expected: int, what: str = "lines") -> None:
    """Raise PrepError unless a file has as many lines as the published one."""
    if found != expected:
        raise PrepError(
            f"{name} has {found:,} {what}, and the published file has {expected:,}; it is another "
            "corpus, or not whole"
        )
