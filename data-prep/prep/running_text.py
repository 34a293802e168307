"""Running texts for language models, with words or bytes as tokens.

Tokens are separated by spaces. fairseq adds a token for the end of a line, `</s>`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from norm_plugin.io.command_line import CommandError
from prep.binarize import make_dictionary
from prep.files import SPLITS, RawFile, RawFiles, check_count, lines_of, report, write_lines
from prep.folder import Counts, DataSpec, make_data_spec
from prep.stages import RawCorpus

SIDE = "txt"  # tok/train.txt
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # as in fairseq's `--bpe characters`
TOKENS = tuple(
    SPACE if byte == ord(" ") else chr(byte) if 0x20 < byte < 0x7F else f"<{byte:02x}>"
    for byte in range(256)
)
"""The token of each byte; printable ASCII characters are their own token."""


@dataclass(frozen=True, kw_only=True)
class WordFiles(RawFiles):
    """One file per split, with words separated by spaces."""

    lines: Mapping[str, int] = field(default_factory=dict)
    """The published number of lines of a split."""

    def read(self, paths: Mapping[str, Path], split: str) -> Iterator[str]:
        """Yield the lines of a split, as tokens with a space between them."""
        name, number = self.members[split], 0
        for line in lines_of(paths[name]):
            number += 1
            yield " ".join(line.split())
        check_count(name, number, self.lines.get(split, number))


@dataclass(frozen=True)
class ByteFile:
    """One file, whose bytes are divided into the splits in order."""

    member: str
    sizes: Mapping[str, int]
    """The number of bytes of each split. Without one for test, valid is also the test text."""
    archive: str = ""
    begins: bytes = b""
    """The first bytes of the file, which are checked."""

    @property
    def files(self) -> list[RawFile]:
        """Return the file."""
        return [RawFile(self.member, self.archive)]

    def read(self, paths: Mapping[str, Path], split: str) -> Iterator[str]:
        """Yield the lines of a split, as tokens with a space between them."""
        path = paths[self.member]
        check_count(path.name, path.stat().st_size, sum(self.sizes.values()), "bytes")
        with open(path, "rb") as stream:
            if (beginning := stream.read(len(self.begins))) != self.begins:
                raise CommandError(
                    f"{path.name} begins with {beginning!r}, not with {self.begins!r}: it is "
                    "another corpus"
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
    """A running text."""

    raw: WordFiles | ByteFile
    """How the raw files are read."""
    unit: Literal["word", "character"]
    """The unit of a token: a word or a character; the end of a line is also one."""

    @property
    def raw_files(self) -> list[RawFile]:
        return self.raw.files

    def data_spec(self, args: argparse.Namespace) -> DataSpec:
        return make_data_spec(
            self.name, SIDE, None, {"unit": self.unit}, layout="language_modeling"
        )

    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        """See `RawCorpus.build`; return no counts, because tok/ has the whole raw text."""
        for split in SPLITS:
            write_lines(work / "tok" / f"{split}.{SIDE}", self.raw.read(paths, split))
            report(f"write {split}")
        make_dictionary([work / "tok" / f"train.{SIDE}"], [work / "bin/dict.txt"], least_count=1)
        return {}
