"""The runs of deep stacks as they are stored: ``runs.jsonl``, a line a run, and ``about.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, read_json, read_text, write_text

ABOUT, RUNS = "about.json", "runs.jsonl"
ORIGIN = ("git", "command")
"""What each row has of its own. Rows of before these columns have those of ``about.json``."""
Row = dict[str, Any]


def stored_rows(folder: Path) -> list[Row]:
    """The runs of a folder.

    A last line that was cut off when the command was killed is no run. Raises CommandError where
    another line is not JSON.
    """
    path, rows = folder / RUNS, list[Row]()
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise CommandError(
                    f"{path}, line {number} is not JSON: {error}; remove that line"
                ) from error
    return rows


def read_rows(folder: Path) -> list[Row]:
    """The same; raises CommandError where there are none."""
    rows = stored_rows(folder)
    if not rows:
        raise CommandError(f"{folder / RUNS} has no runs yet")
    return rows


def begin(out: Path, facts: dict[str, Any]) -> list[Row]:
    """The rows that ``out`` has already; raises CommandError if they are of other settings.

    Args:
        facts: what ``about.json`` has.
    """
    if not (out / ABOUT).exists():
        write_text(out / RUNS, "")
        write_text(out / ABOUT, json.dumps(facts, indent=2, sort_keys=True) + "\n")
    before = read_json(out / ABOUT)
    for key in ("settings", "data"):
        if before[key] != facts[key]:
            raise CommandError(
                f"{out} has runs with other {key} ({before[key]}): remove it, or choose another "
                "--out"
            )
    rows = stored_rows(out)
    if not read_text(out / RUNS).endswith("\n"):  # the next row begins a line
        write_text(out / RUNS, "".join(map(_line, rows)))
    return rows


def add_row(out: Path, row: Row) -> None:
    """Store one more run."""
    with open(out / RUNS, "a", encoding="utf-8") as stream:
        stream.write(_line(row))


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"
