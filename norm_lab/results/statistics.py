"""The statistics that are stored with a result: the record of ``--norm-record`` in short, and the
singular values of the embeddings.

They take about 1 KB per recorded update of a model with 8 layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import reading

LEFT_OUT = ("positions", "batch_", "running_")
"""Prefixes of values that only the full record contains; no figure draws them."""
DIGITS = 3
PARTS = ("sites", "layers")


def statistics_of_run(record: Path | None, spectra: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry ``statistics`` of a result.

    Args:
        record: the file of ``--norm-record``, if any.
        spectra: the singular values of the embeddings of the evaluated checkpoint.
    """
    return {
        "record": None if record is None else to_columns(record_lines(record)),
        "spectra": list(spectra),
    }


def record_lines(path: Path) -> list[dict[str, Any]]:
    """Return the header and the records in a file of ``--norm-record``.

    Raises:
        CommandError: the file is missing, has no records, or has another version.
    """
    from norm_plugin.models.recording import read_records  # imports fairseq

    try:
        with reading(path):
            lines = read_records(path)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if len(lines) < 2:
        raise CommandError(f"{path} has no record yet")
    return lines


def to_columns(lines: Sequence[dict[str, Any]], digits: int | None = DIGITS) -> dict[str, Any]:
    """Return a record of ``--norm-record`` by columns, rounded and without ``LEFT_OUT``.

    Args:
        digits: significant digits; None keeps all digits and all values.

    Returns:
        the header; ``updates``; and for each part, place and name of a value the list of its values
        over the updates, with None for updates without it.
    """
    header, *updates = lines
    columns: dict[str, dict[str, dict[str, list[Any]]]] = {part: {} for part in PARTS}
    for index, line in enumerate(updates):
        for part in PARTS:
            for place, values in line[part].items():
                names = columns[part].setdefault(place, {})
                for name, value in values.items():
                    if digits is None or not name.startswith(LEFT_OUT):
                        column = names.setdefault(name, [None] * len(updates))
                        column[index] = _significant(value, digits)
    header = {key: header[key] for key in ("every", "norms")} | {"channels": header["sites"]}
    return {**header, "updates": [line["update"] for line in updates], **columns}


def _significant(value: Any, digits: int | None) -> Any:
    """Return a value rounded to significant digits; None if not finite, as JSON has no NaN."""
    if isinstance(value, list):
        return [_significant(element, digits) for element in value]
    if value is None or not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")
