r"""The raw files of a running text, which a language model reads: words, or single bytes.

Both give tokens with a space between them. The end of a line is a token of its own, which fairseq
adds: `</s>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prep.archives import BLOCK_BYTES
from prep.messages import PrepError
from prep.packed import Packed
from prep.raw_stage import CheckedFiles
from prep.text_files import SPLITS, decode_lines

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # as in fairseq's `--bpe characters`
TOKENS = tuple(
    SPACE if byte == ord(" ") else chr(byte) if 0x20 < byte < 0x7F else f"<{byte:02x}>"
    for byte in range(256)
)
"""The token of each byte. Those of printable ASCII are the characters themselves."""


class TextFiles(CheckedFiles, Protocol):
    """What the preparation asks of the raw files of a running text."""

    def read(self, folder: Path, split: str) -> Iterator[str]:
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
    def files(self) -> Packed:
        """All files."""
        return Packed(self.archive, tuple(self.members[split] for split in SPLITS))

    def inputs(self, folder: Path) -> list[Path]:
        return self.files.inputs(folder)

    def check(self, folder: Path) -> None:
        self.files.check(folder)

    def read(self, folder: Path, split: str) -> Iterator[str]:
        name, number = self.members[split], 0
        with self.files.opened(folder, name) as stream:
            for line in decode_lines(stream, f"{name} in {folder}"):
                number += 1
                yield " ".join(line.split())
        expected = self.lines.get(split, number)
        if number != expected:
            raise PrepError(
                f"{name} in {folder} has {number:,} lines, and {split} of this corpus has "
                f"{expected:,}; it is another corpus"
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
    def files(self) -> Packed:
        """The file, in its archive if it has one."""
        return Packed(self.archive, (self.member,))

    def inputs(self, folder: Path) -> list[Path]:
        return self.files.inputs(folder)

    def check(self, folder: Path) -> None:
        self.files.check(folder)
        (path,) = self.inputs(folder)
        expected = sum(self.sizes.values())
        with self.files.opened(folder, self.member) as stream:
            beginning = stream.read(len(self.begins))
            found = len(beginning)
            while block := stream.read(BLOCK_BYTES):
                found += len(block)
        if beginning != self.begins or found != expected:
            raise PrepError(
                f"{path} holds {found:,} bytes that begin with {beginning!r}; {self.member} has "
                f"{expected:,} and begins with {self.begins!r}: it is another corpus"
            )

    def read(self, folder: Path, split: str) -> Iterator[str]:
        split = split if split in self.sizes else "valid"
        before = list(self.sizes)[: list(self.sizes).index(split)]
        skip, left = sum(self.sizes[one] for one in before), self.sizes[split]
        with self.files.opened(folder, self.member) as stream:
            while skip > 0 and (block := stream.read(min(skip, BLOCK_BYTES))):
                skip -= len(block)
            while left > 0:
                line = stream.readline(left)
                if not line:
                    raise PrepError(f"{self.member} in {folder} ends within {split}")
                left -= len(line)
                yield " ".join(TOKENS[byte] for byte in line.removesuffix(b"\n"))
