"""Reading text out of .tgz archives as a stream; nothing is ever unpacked.

So no path in an archive can lead anywhere. One that tries to, or that holds anything but files
and folders, was tampered with, and is refused as a whole before a line of it is used.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Iterable, Iterator

from steps import PrepError, decode_lines

BLOCK_BYTES = 1 << 20


def check_archive(path: Path, wanted: Iterable[str] = ()) -> None:
    """Read `path` to its end; raises PrepError where it is no whole, honest archive of `wanted`."""
    missing = set(wanted)
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    _check_member(path, member)
                    if member.isfile():
                        missing.discard(_plain(member.name))
            while stream.read(BLOCK_BYTES):  # to the checksum at the very end
                pass
    except FileNotFoundError:
        raise PrepError(f"{path} is missing") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
        raise PrepError(
            f"{path} is truncated or damaged: {error}; remove it and fetch it again"
        ) from None
    if missing:
        raise PrepError(f"{path} holds no {', '.join(sorted(missing))}; it is another archive")


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise PrepError(f"{path} is not to be trusted: {member.name!r} points out of its folder")
    if not member.isfile() and not member.isdir():
        raise PrepError(f"{path} is not to be trusted: {member.name!r} is a link or a device")


def _plain(name: str) -> str:
    return str(PurePosixPath(name))  # ./a/b and a/b are one


def member_lines(path: Path, name: str) -> Iterator[str]:
    """Yield the lines of the file `name` in the archive `path`, without their newline."""
    with tarfile.open(path, mode="r|gz") as archive:
        for member in archive:
            if member.isfile() and _plain(member.name) == name:
                stream = archive.extractfile(member)
                assert stream is not None  # it is a file
                yield from decode_lines(stream, f"{name} in {path}")
                return
    raise PrepError(f"{path} holds no {name}; it is another archive")
