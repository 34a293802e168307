"""Files of a page and of its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from norm_lab.report.figure import Figure
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write


def write_files(contents: Mapping[str, str | bytes], out: Path) -> list[Path]:
    """Write files by name into a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create {out}: {error.strerror}") from error
    for name, content in contents.items():
        with atomic_write(out / name) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    return [out / name for name in contents]


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """Return the SVG and CSV files of figures, by name."""
    files: dict[str, str] = {}
    for drawn in figures:
        files |= {f"{drawn.name}.svg": drawn.standalone, f"{drawn.name}.csv": drawn.csv}
    return files
