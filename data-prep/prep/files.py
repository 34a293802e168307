r"""Raw files, plain or in archives, and text that is read and written line by line.

Text is UTF-8, and lines end at "\n" only: sentences contain characters such as U+2028, at which a
line break would misalign the two sides of a corpus. Unlike those of `norm_plugin.io.files`, no
function reads a whole text into memory.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import logging
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from filelock import FileLock, Timeout
from tqdm import tqdm

from norm_plugin.io.command_line import CommandError

SPLITS = ("train", "valid", "test")
ARCHIVES = (".tgz", ".tar.gz", ".zip")
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# a time that is no number or too large, a link to nothing, an encrypted member, another method
ODD = (ValueError, OverflowError, KeyError, RuntimeError, NotImplementedError)
"""What reading an archive raises for members of a kind that no corpus has."""
BLOCK_BYTES = 1 << 20

logging.getLogger("filelock").setLevel(logging.WARNING)  # fairseq lowers the root level


def report(message: str) -> None:
    """Print a line to stderr, above a running progress bar."""
    tqdm.write(message, file=sys.stderr)


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it. A kill releases it."""
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report(f"another process is {doing}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# ---- text -----------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file (plain or .gz) without their newline.

    A byte order mark at the start of the file is not part of its first line.

    Raises:
        CommandError: the gzip stream is truncated or damaged, or a line is not UTF-8; the message
            names the file and the line.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            if stream.peek(3).startswith(codecs.BOM_UTF8):
                stream.read(3)
            for line in stream:
                number += 1
                yield line.removesuffix(b"\n").decode()
    except DAMAGED as error:
        raise CommandError(
            f"{path} is truncated or damaged after {number:,} lines: {error}"
        ) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}, line {number:,}, is not UTF-8: {error}") from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each followed by "\\n"; create parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_count(name: str, count: int, expected: int, unit: str = "lines") -> None:
    """Raise CommandError if a file or split has another number of lines than published."""
    if count != expected:
        raise CommandError(
            f"{name} has {count:,} {unit}, but the published one has {expected:,}; it is another "
            "corpus, or incomplete"
        )


# ---- raw files and archives -----------------------------------------------------------------


class RawFile(NamedTuple):
    """A raw file and its archive, if any.

    If the archive is missing, the file itself is used, plain or as .gz.
    """

    name: str
    archive: str = ""

    def find(self, folder: Path) -> Path | None:
        """Return the archive in the folder, or else the file itself; None if both are missing."""
        base = Path(self.name).name
        paths = [folder / name for name in (self.archive, f"{base}.gz", base)]
        return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True)
class RawFiles:
    """Raw files by split or label, plain or in one archive."""

    members: Mapping[str, str]
    _: KW_ONLY
    archive: str = ""

    @property
    def files(self) -> list[RawFile]:
        """Return all files."""
        return [RawFile(name, self.archive) for name in self.members.values()]


def find_raw(folder: Path, files: Sequence[RawFile]) -> dict[RawFile, Path]:
    """Return the archive of each file, or else the file; CommandError if both are missing."""
    paths = {file: file.find(folder) for file in files}
    if missing := [file for file, path in paths.items() if path is None]:
        names = ", ".join(Path(file.name).name for file in missing)
        archives = ", ".join(dict.fromkeys(file.archive for file in missing if file.archive))
        instead = f"; {archives} can be used instead" if archives else ""
        raise CommandError(f"{folder} lacks {names}{instead}")
    return {file: path for file, path in paths.items() if path is not None}


def read_raw(folder: Path, files: Sequence[RawFile], destination: Path) -> dict[str, Path]:
    """Check the archives by reading them to the end, and unpack their files to a destination.

    Raises:
        CommandError: an archive is damaged or lacks a file.

    Returns:
        The path of each file by its name.
    """
    paths = find_raw(folder, files)
    packed = {path for file, path in paths.items() if path.name == file.archive}
    for archive in sorted(packed):
        read_archive(archive, [file.name for file in files if paths[file] == archive], destination)
    return {
        file.name: destination / file.name if path in packed else path
        for file, path in paths.items()
    }


def read_archive(path: Path, wanted: Collection[str] = (), destination: Path | None = None) -> None:
    """Check a .tgz or .zip by reading it to the end, and unpack files to a destination, if any.

    Raises:
        CommandError: it is damaged, lacks a wanted file, or has one outside the destination.
    """
    read = _read_zip if zipfile.is_zipfile(path) else _read_tar
    try:
        names = read(path, wanted, destination)
    except (*DAMAGED, *ODD) as error:
        raise CommandError(
            f"{path} is truncated or damaged: {error}; remove it and download it again"
        ) from None
    if missing := sorted(set(wanted) - names):
        raise CommandError(f"{path} lacks {', '.join(missing)}; it is not the expected archive")


def _read_zip(path: Path, wanted: Collection[str], destination: Path | None) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        names = set(archive.namelist())
        if destination is not None:
            archive.extractall(destination, names.intersection(wanted))
    return names


def _read_tar(path: Path, wanted: Collection[str], destination: Path | None) -> set[str]:
    names = set()
    with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            name = str(PurePosixPath(member.name))  # ./a/b and a/b are the same file
            names.add(name)
            if destination is not None and name in wanted:
                archive.extract(member, destination, filter="data")
        while stream.read(BLOCK_BYTES):  # up to the checksum at the very end
            pass
    return names
