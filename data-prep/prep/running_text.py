"""Running texts for language models: words, or single bytes.

Both give tokens with a space between them. The end of a line is a token of its own, which fairseq
adds: `</s>`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from norm_plugin.commands.command_line import CommandError
from prep.binarize import make_dictionary
from prep.files import SPLITS, RawFile, lines_of, report, write_lines
from prep.folder import LANGUAGE_MODELING, Counts, Recipe, make_recipe
from prep.stages import RawCorpus

SIDE = "txt"  # tok/train.txt
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # as in fairseq's `--bpe characters`
TOKENS = tuple(
    SPACE if byte == ord(" ") else chr(byte) if 0x20 < byte < 0x7F else f"<{byte:02x}>"
    for byte in range(256)
)
"""The token of each byte. Those of printable ASCII are the characters themselves."""


class TextFiles(Protocol):
    """The raw files of a running text."""

    @property
    def files(self) -> list[RawFile]:
        """All files."""

    def read(self, paths: Mapping[str, Path], split: str) -> Iterator[str]:
        """The lines of a split, as tokens with a space between them."""


@dataclass(frozen=True)
class WordFiles:
    """A file of each split, whose words are separated by spaces."""

    archive: str
    members: Mapping[str, str]
    """The file of each split."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The published number of lines of a split; another number is an error."""

    @property
    def files(self) -> list[RawFile]:
        return [RawFile(self.members[split], self.archive) for split in SPLITS]

    def read(self, paths: Mapping[str, Path], split: str) -> Iterator[str]:
        name, number = self.members[split], 0
        for line in lines_of(paths[name]):
            number += 1
            yield " ".join(line.split())
        expected = self.lines.get(split, number)
        if number != expected:
            raise CommandError(
                f"{name} has {number:,} lines, and {split} of this corpus has {expected:,}; it is "
                "another corpus"
            )


@dataclass(frozen=True)
class ByteFile:
    """One file, whose bytes are divided among the splits in their order."""

    member: str
    sizes: Mapping[str, int]
    """The number of bytes of each split. Without one for test, test is the text of valid."""
    archive: str = ""
    begins: bytes = b""
    """How the file begins; another beginning is an error."""

    @property
    def files(self) -> list[RawFile]:
        return [RawFile(self.member, self.archive)]

    def read(self, paths: Mapping[str, Path], split: str) -> Iterator[str]:
        path, expected = paths[self.member], sum(self.sizes.values())
        with open(path, "rb") as stream:
            beginning, size = stream.read(len(self.begins)), path.stat().st_size
            if beginning != self.begins or size != expected:
                raise CommandError(
                    f"{path.name} has {size:,} bytes and begins with {beginning!r}; {self.member} "
                    f"has {expected:,} and begins with {self.begins!r}: it is another corpus"
                )
            split = split if split in self.sizes else "valid"
            before = list(self.sizes)[: list(self.sizes).index(split)]
            stream.seek(sum(self.sizes[each] for each in before))
            remaining = self.sizes[split]
            while remaining > 0:
                line = stream.readline(remaining)
                remaining -= len(line)
                yield " ".join(TOKENS[byte] for byte in line.removesuffix(b"\n"))


@dataclass(frozen=True, kw_only=True)
class TextCorpus(RawCorpus):
    """Everything in which one running text differs from another."""

    raw: TextFiles
    """How the raw files are read."""
    unit: Literal["word", "character"]
    """What a token is, and so of what a loss is. The end of a line is one too."""

    @property
    def raw_files(self) -> list[RawFile]:
        return self.raw.files

    def recipe(self, args: argparse.Namespace, inputs: dict[str, str]) -> Recipe:
        settings = {"unit": self.unit}
        return make_recipe(self.name, SIDE, None, settings, inputs, layout=LANGUAGE_MODELING)

    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        """See `RawCorpus.build`; no counts, as tok/ holds the whole raw text."""
        for split in SPLITS:
            write_lines(work / "tok" / f"{split}.{SIDE}", self.raw.read(paths, split))
            report(f"write {split}")
        make_dictionary([work / "tok" / f"train.{SIDE}"], [work / "bin/dict.txt"], least_count=1)
        return {}
