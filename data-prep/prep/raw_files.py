"""The raw files of a corpus: which there are, whether they are whole, and their sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prep.archives import check_archive, member_lines
from prep.messages import PrepError
from prep.text_files import SPLITS, check_parallel, read_lines

Member = tuple[str, str]  # archive, file in it
Parser = Callable[[Iterable[str]], Iterable[str]]  # lines of a file to sentences


class RawFiles(Protocol):
    """What the preparation asks of the raw files in a folder."""

    @property
    def lines(self) -> Mapping[str, int]:
        """The published number of lines of a split; another number is an error."""

    def inputs(self, folder: Path) -> list[Path]:
        """All raw files; raises PrepError if one is missing."""

    def check(self, folder: Path) -> None:
        """Raise PrepError if a file is damaged, not to be trusted, or not the expected one."""

    def read(self, folder: Path, split: str, language: str) -> Iterator[str]:
        """The raw sentences of one side of a split."""


@dataclass(frozen=True)
class PlainFiles:
    """One text file a side of each split: STEM.LANGUAGE, plain or as STEM.LANGUAGE.gz."""

    languages: tuple[str, str]
    stems: Mapping[str, str]
    """Stem of the files of each split."""
    lines: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The names of all files, without .gz."""
        return [f"{self.stems[split]}.{side}" for split in SPLITS for side in self.languages]

    def inputs(self, folder: Path) -> list[Path]:
        return [_find_file(folder, name) for name in self.names()]

    def check(self, folder: Path) -> None:
        for split, stem in self.stems.items():
            source, target = (_find_file(folder, f"{stem}.{side}") for side in self.languages)
            check_parallel(source, target, self.lines.get(split))

    def read(self, folder: Path, split: str, language: str) -> Iterator[str]:
        return read_lines(_find_file(folder, f"{self.stems[split]}.{language}"))


def _find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise PrepError(f"neither {name}.gz nor {name} is in {folder}")


@dataclass(frozen=True)
class ArchiveFiles:
    """Files inside .tgz archives."""

    languages: tuple[str, str]
    members: Callable[[str, str], list[Member]]
    """Split and language to the files that make this side, in order."""
    parsers: Mapping[str, Parser] = field(default_factory=dict)
    """How the files of a split are read, if they are not plain text."""
    splits: tuple[str, ...] = SPLITS
    """The splits that have files of their own."""
    lines: Mapping[str, int] = field(default_factory=dict)

    def _wanted(self) -> dict[str, list[str]]:
        """Archive to the files that are read from it."""
        wanted: dict[str, list[str]] = {}
        for split in self.splits:
            for language in self.languages:
                for archive, name in self.members(split, language):
                    wanted.setdefault(archive, []).append(name)
        return wanted

    def inputs(self, folder: Path) -> list[Path]:
        missing = [archive for archive in self._wanted() if not (folder / archive).is_file()]
        if missing:
            raise PrepError(f"{folder} lacks {', '.join(missing)}")
        return [folder / archive for archive in self._wanted()]

    def check(self, folder: Path) -> None:
        for archive, names in self._wanted().items():
            check_archive(folder / archive, names)

    def read(self, folder: Path, split: str, language: str) -> Iterator[str]:
        for archive, name in self.members(split, language):
            lines = member_lines(folder / archive, name)
            yield from self.parsers[split](lines) if split in self.parsers else lines
