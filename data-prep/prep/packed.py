"""Raw files that come in an archive, or lie in a folder as they were in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from prep.archives import ARCHIVES, check_archive, open_member
from prep.messages import PrepError
from prep.zips import check_zip, open_zipped


@dataclass(frozen=True)
class Packed:
    """Files in an archive. In place of the archive the folder may hold the files themselves."""

    archive: str  # empty: there is none
    members: tuple[str, ...]

    def inputs(self, folder: Path) -> list[Path]:
        """The archive, or the files; raises PrepError if neither is there."""
        if self._packed(folder):
            return [folder / self.archive]
        plain = [folder / PurePosixPath(name).name for name in self.members]
        missing = ", ".join(path.name for path in plain if not path.is_file())
        if missing:
            lacks = f"has neither {self.archive} nor" if self.archive else "lacks"
            raise PrepError(f"{folder} {lacks} {missing}")
        return plain

    def _packed(self, folder: Path) -> bool:
        return bool(self.archive) and (folder / self.archive).is_file()

    def check(self, folder: Path) -> None:
        """Raise PrepError if a file is missing or damaged, or in another archive."""
        self.inputs(folder)
        if self._packed(folder):
            check = check_archive if self.archive.endswith(ARCHIVES) else check_zip
            check(folder / self.archive, self.members)

    @contextmanager
    def opened(self, folder: Path, name: str) -> Iterator[IO[bytes]]:
        """A file, open for reading."""
        if self._packed(folder):
            unpack = open_member if self.archive.endswith(ARCHIVES) else open_zipped
            with unpack(folder / self.archive, name) as stream:
                yield stream
        else:
            with open(folder / PurePosixPath(name).name, "rb") as stream:
                yield stream
