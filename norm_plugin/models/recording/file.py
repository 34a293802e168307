"""The file of a run's records: JSON lines, each compressed by itself.

The first line is the header, which says what is recorded; each further line is the record of one
update. A line is a complete gzip member, so ``zcat`` reads the file, and an incomplete line left by
a killed run is recognized and skipped.
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
    """Return the header and the records of a file, as they were written.

    Raises:
        ValueError: the file is not a file of records, or of another version.
    """
    try:
        lines = [json.loads(member) for member in _whole_members(path.read_bytes())]
    except (zlib.error, ValueError) as error:  # not gzip, text or JSON
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
    """Writes the records of a run, and continues the file of a resumed run.

    Args:
        path: the file; its folder is created if missing.
        header: what is recorded; a run continues a file only if its header is equal.

    Raises:
        ValueError: ``path`` has the records of another run, or is no file of records.
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
        """Append the record of an update.

        The first call drops the file's records of this update and later ones: a killed run may have
        progressed beyond the checkpoint from which it is resumed.
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
