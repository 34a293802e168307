"""Reads files in .zip archives as a stream, without unpacking them; see `archives`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from prep.archives import check_size, most_bytes
from prep.messages import PrepError

ZIPS = (".zip",)


def check_zip(path: Path, wanted: Iterable[str] = ()) -> None:
    """Read `path` to its end.

    Raises PrepError if it is missing, damaged, unpacks to far more than its size, or lacks a file
    of `wanted`.
    """
    with _open(path) as archive:
        members = archive.infolist()
        check_size(path, sum(member.file_size for member in members), most_bytes(path))
        damaged = archive.testzip()  # reads no more of a file than its `file_size`
    if damaged is not None:
        raise PrepError(f"{path} is damaged at {damaged}; remove it and download it again")
    missing = set(wanted) - {member.filename for member in members}
    if missing:
        raise _lacks(path, missing)


@contextmanager
def open_zipped(path: Path, name: str) -> Iterator[IO[bytes]]:
    """The file `name` in the archive `path`, open for reading; PrepError if it is not there."""
    with _open(path) as archive:
        if name not in archive.namelist():
            raise _lacks(path, [name])
        with archive.open(name) as stream:
            yield stream


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise PrepError(f"{path} is missing")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise PrepError(
            f"{path} is truncated or damaged: {error}; remove it and download it again"
        ) from None


def _lacks(path: Path, names: Iterable[str]) -> PrepError:
    return PrepError(f"{path} lacks {', '.join(sorted(names))}; it is not the archive expected")
