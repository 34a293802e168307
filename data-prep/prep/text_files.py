r"""Reading, checking and writing text files, line by line.

Text is UTF-8, and a line ends at "\n" and nowhere else: characters such as U+2028 occur inside real
sentences, and a line break there would shift one side of a corpus against the other. No function
holds a whole file in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from prep.messages import PrepError

# Far past every real corpus. Memory grows with a line, time with the square of a word.
LONGEST_LINE = 1 << 20  # bytes
LONGEST_WORD = 1 << 16  # characters
# Python counts four control characters as white space. Moses does not, and removes them.
WORD = re.compile(r"[\S\x1c-\x1f]+")
SPLITS = ("train", "valid", "test")


def read_lines(path: Path, encoding: str = "UTF-8") -> Iterator[str]:
    """Yield the lines of a text file (plain or .gz) without their newline.

    Raises PrepError with the file and the line if the file is missing, its gzip stream is cut or
    damaged, or a line is not in its encoding.
    """
    if not path.is_file():
        raise PrepError(f"{path} is missing")
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        yield from decode_lines(stream, str(path), encoding)


def decode_lines(
    stream: IO[bytes] | BufferedIOBase, name: str, encoding: str = "UTF-8"
) -> Iterator[str]:
    """Yield the lines of an open file without their newline; `name` is for the errors."""
    number = 0
    try:
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise PrepError(f"{name}, line {number:,}, is longer than {LONGEST_LINE:,} bytes")
            text = line.rstrip(b"\n").decode(encoding)
            if (
                len(text) > LONGEST_WORD
                and max(map(len, WORD.findall(text)), default=0) > LONGEST_WORD
            ):
                most = f"{LONGEST_WORD:,} characters"
                raise PrepError(f"{name}, line {number:,}, holds a word of more than {most}")
            yield text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PrepError(f"{name} is truncated or damaged after {number:,} lines: {error}") from None
    except UnicodeDecodeError as error:
        raise PrepError(f"{name}, line {number:,}, is not {encoding}: {error}") from None


def count_lines(path: Path) -> int:
    """Number of lines of a text file, plain or .gz."""
    return sum(1 for _ in read_lines(path))


def check_parallel(source: Path, target: Path, expected: int | None = None) -> int:
    """Check that both sides have the same number of lines, at least one, and return it.

    With `expected`, both must have exactly that number. Raises PrepError naming both files and
    both counts.
    """
    counts = count_lines(source), count_lines(target)
    found = f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}"
    if expected is not None and counts != (expected, expected):
        raise PrepError(f"{found}; {expected:,} are expected in each")
    if counts[0] != counts[1]:
        raise PrepError(f"{found}; line N of one must be the translation of line N of the other")
    if counts[0] == 0:
        raise PrepError(f"{source} and {target} are empty")
    return counts[0]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each ended by "\\n"; parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
