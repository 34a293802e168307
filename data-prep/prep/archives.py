"""Reads text from .tgz archives as a stream, without unpacking them.

No path in an archive is ever written to. An archive is still refused, before a line of it is used,
if a path in it leaves the archive's folder, if it holds a link or a device, or if it unpacks to far
more than its size: somebody has tampered with it.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from prep.messages import PrepError
from prep.text_files import decode_lines

ARCHIVES = (".tgz", ".tar.gz")
BLOCK_BYTES = 1 << 20
# Text shrinks to a third or a quarter; repeated text, as in a small test, to a hundredth.
MOST_RATIO = 200
SMALL_BYTES = 64 << 20  # unpacked; below this any ratio is harmless
MOST_MEMBERS = 10_000
LONGEST_NAME = 1 << 16  # bytes; tarfile reads a name, or a header of its kind, into memory
HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Member(tarfile.TarInfo):
    """A member of an archive; headers of absurd length are an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """The header in `buf`. tarfile calls this, and reads what follows HEADERS into memory."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in HEADERS and member.size > LONGEST_NAME:
            raise tarfile.TarError(f"a header of {member.size:,} bytes")
        return member


def check_archive(path: Path, wanted: Iterable[str] = ()) -> None:
    """Read `path` to its end.

    Raises PrepError if it is missing, damaged, not to be trusted, or lacks a file of `wanted`.
    """
    missing = set(wanted)
    most = most_bytes(path) if path.is_file() else 0
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                for number, member in enumerate(archive):
                    _check_member(path, member)
                    if number >= MOST_MEMBERS:
                        raise PrepError(f"{path} is not to be trusted: too many files")
                    check_size(path, member.offset_data + member.size, most)
                    if member.isfile():
                        missing.discard(_plain(member.name))
            while stream.read(BLOCK_BYTES):  # to the checksum at the very end
                check_size(path, stream.tell(), most)
    except FileNotFoundError:
        raise PrepError(f"{path} is missing") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise PrepError(
            f"{path} is truncated or damaged: {error}; remove it and download it again"
        ) from None
    if missing:
        raise PrepError(
            f"{path} lacks {', '.join(sorted(missing))}; it is not the archive expected"
        )


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise PrepError(f"{path} is not to be trusted: {member.name!r} leads out of its folder")
    if not member.isfile() and not member.isdir():
        raise PrepError(f"{path} is not to be trusted: {member.name!r} is a link or a device")


def most_bytes(path: Path) -> int:
    """To how many bytes the archive `path` may unpack."""
    return max(SMALL_BYTES, MOST_RATIO * path.stat().st_size)


def check_size(path: Path, size: int, most: int) -> None:
    """Raise PrepError if an archive unpacks to `size` bytes and that is more than `most`."""
    if size > most:
        raise PrepError(f"{path} is not to be trusted: it unpacks to more than {most:,} bytes")


def _plain(name: str) -> str:
    return str(PurePosixPath(name))  # ./a/b and a/b are the same file


def member_lines(path: Path, name: str, encoding: str = "UTF-8") -> Iterator[str]:
    """Yield the lines of the file `name` in the archive `path`, without their newline."""
    with open_member(path, name) as stream:
        yield from decode_lines(stream, f"{name} in {path}", encoding)


@contextmanager
def open_member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """The file `name` in the archive `path`, open for reading; PrepError if it is not there."""
    with tarfile.open(path, mode="r|gz", tarinfo=_Member) as archive:
        for member in archive:
            if member.isfile() and _plain(member.name) == name:
                stream = archive.extractfile(member)
                assert stream is not None  # it is a file
                yield stream
                return
    raise PrepError(f"{path} lacks {name}; it is not the archive expected")
