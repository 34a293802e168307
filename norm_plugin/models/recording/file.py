"""The file of a run's records: JSON lines, each compressed by itself.

The first line is the header, which says what is recorded; each further line is the record of one
update. A line is a complete gzip member, so ``zcat`` reads the file, and a line that a killed run
has left half-written is told from a whole one and left out.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = 1
Line = dict[str, Any]


def read_records(path: Path) -> list[Line]:
    """The header and the records of a file, as they were written.

    Raises:
        ValueError: it is not a file of records, or of another version.
    """
    try:
        lines = [json.loads(member) for member in _whole_members(path.read_bytes())]
    except (zlib.error, ValueError) as error:  # no gzip, no text or no JSON
        raise ValueError(f"{path} is not a file of --norm-record: {error}") from error
    if lines and lines[0].get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {lines[0].get('format')} of --norm-record; this version reads "
            f"format {FORMAT}"
        )
    return lines


def _whole_members(data: bytes) -> Iterator[bytes]:
    while data:
        member = zlib.decompressobj(wbits=31)  # 31: of gzip
        text = member.decompress(data)
        if not member.eof:
            return
        yield text
        data = member.unused_data


class RecordFile:
    """Writes the records of a run, and goes on in the file that the run has left.

    Args:
        path: its folder is made if it is missing.
        header: what is recorded; a run goes on only in a file with the same.

    Raises:
        ValueError: ``path`` has other records, or is no such file.
    """

    def __init__(self, path: Path, header: Line) -> None:
        self.path, self.header = path, {"format": FORMAT, **header}
        self.continues = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if lines := self._lines():
            differs = [key for key, value in self.header.items() if lines[0].get(key) != value]
            if differs:
                raise ValueError(
                    f"{path} has the records of another run, which differ in "
                    f"{', '.join(differs)}: move it away, or give another --norm-record-file"
                )

    def _lines(self) -> list[Line]:
        return read_records(self.path) if self.path.exists() else []

    def append(self, record: Line) -> None:
        """Add the record of an update.

        The first call drops what the file has of this update and later ones: a run that was killed
        had come further than the checkpoint that it was resumed from.
        """
        if not self.continues:
            before = [line for line in self._lines()[1:] if line["update"] < record["update"]]
            temporary = self.path.with_name(f"{self.path.name}.tmp")
            temporary.write_bytes(b"".join(map(_member, [self.header, *before])))
            os.replace(temporary, self.path)
            self.continues = True
        with self.path.open("ab") as stream:
            stream.write(_member(record))


def _member(line: Line) -> bytes:
    text = json.dumps(line, separators=(",", ":")) + "\n"
    return gzip.compress(text.encode("utf-8"), mtime=0)
