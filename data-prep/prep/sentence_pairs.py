"""Raw files of labeled pairs of sentences, as the GLUE benchmark has them: tables with tabs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prep.labeled_files import Example, Examples, check_count
from prep.messages import PrepError
from prep.packed import Packed
from prep.text_files import decode_lines


@dataclass(frozen=True)
class PairFiles:
    """A table for training and one for validation, in a .zip or beside each other.

    The labels of GLUE's test sets are not published, so test is the text of valid.
    """

    archive: str
    members: Mapping[str, str]
    """The tables of train and valid in the archive. Outside it, each has the end of its name."""
    columns: tuple[str, str, str]
    """The headings of the first sentence, of the second and of the label."""
    lines: Mapping[str, int]
    """The published number of pairs of train and of valid; another number is an error."""
    random_split = False
    pairs = True

    @property
    def files(self) -> Packed:
        """All files."""
        return Packed(self.archive, tuple(self.members.values()))

    def inputs(self, folder: Path) -> list[Path]:
        return self.files.inputs(folder)

    def check(self, folder: Path) -> None:
        self.files.check(folder)

    def read(self, folder: Path, split_seed: int | None) -> dict[str, Examples]:
        found = {split: self._table(folder, split) for split in self.members}
        return {**found, "test": found["valid"]}

    def _table(self, folder: Path, split: str) -> Examples:
        name = f"{self.members[split]} in {folder}"
        with self.files.opened(folder, self.members[split]) as stream:
            # Windows writes a byte order mark before the heading, and \r at the end of a line.
            rows = [
                line.removeprefix("\ufeff").removesuffix("\r").split("\t")
                for line in decode_lines(stream, name)
            ]
        heading = rows[0] if rows else []
        if missing := [column for column in self.columns if column not in heading]:
            raise PrepError(f"{name} has no column {', '.join(missing)}; it is another corpus")
        check_count(name, len(rows) - 1, self.lines[split], "pairs")
        first, second, label = (heading.index(column) for column in self.columns)
        examples = []
        for number, row in enumerate(rows[1:], 2):
            place = f"{name}, line {number:,},"
            if len(row) != len(heading):
                raise PrepError(f"{place} has {len(row)} columns, and its heading {len(heading)}")
            examples.append(Example(row[first], row[label], place, row[second]))
        return examples
