"""The statistics that are stored with a result: the record of ``--norm-record`` in short, and the
singular values of the embeddings.

They take about 1 KB per recorded update of a model with 8 layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import reading

LEFT_OUT = ("positions", "batch_", "running_")
"""Prefixes of values that only the full record contains; no figure draws them."""
DIGITS = 3
EMBEDDING = "embed_tokens.weight"
PARTS = ("sites", "layers")


def statistics_of_run(record: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry ``statistics`` of a result.

    Args:
        record: the file of ``--norm-record``, which may be missing.
        state: the content of the evaluated checkpoint.
    """
    return {
        "record": to_columns(record_lines(record)) if record.exists() else None,
        "spectra": spectra_of(state),
    }


def spectra_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the singular values of each distinct embedding of a checkpoint, in falling order.

    See Figure 6 of the PowerNorm paper.

    Returns:
        dictionaries with ``side``, the encoder, the decoder or ``shared``; ``shape``, words and
        channels; and ``values`` with five significant digits. Empty for a model without embeddings.
    """
    embeddings = {
        name.split(".")[0]: weight
        for name, weight in state["model"].items()
        if name.endswith(EMBEDDING)
    }
    weights = list(embeddings.values())
    if len(weights) > 1 and all(map(weights[0].equal, weights)):
        embeddings = {"shared": weights[0]}
    spectra = []
    for side, weight in embeddings.items():
        values = np.linalg.svd(weight.double().numpy(), compute_uv=False)
        rounded = [_significant(value, 5) for value in values]
        spectra.append({"side": side, "shape": tuple(weight.shape), "values": rounded})
    return spectra


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
