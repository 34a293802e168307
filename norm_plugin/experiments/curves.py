"""Losses over training, from the log of ``fairseq-train --log-format json --log-file``.

fairseq writes a line of JSON at the end of each epoch, once for training and once for each
validation; a run that was resumed appends to its log, and an epoch that it trained again counts as
it was trained last.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import read_lines

SUBSETS = ("train", "valid")
VALUES = ("loss", "nll_loss", "wall")
"""What is kept of a line: the criterion's loss and the negative log-likelihood, both in bits a
token, and the seconds since the start of the process."""
Curves = dict[str, list[dict[str, float]]]


def read_curves(log: Path) -> Curves:
    """Losses by subset, in order of updates.

    Returns:
        For ``train`` and ``valid`` a list of points, each with ``epoch``, ``updates`` and those of
        VALUES that the log has. A subset that was not logged has an empty list.

    Raises:
        CommandError: the file cannot be read.
    """
    found: dict[str, dict[int, dict[str, float]]] = {subset: {} for subset in SUBSETS}
    for line in read_lines(log):
        entry = _entry(line)
        for subset in SUBSETS:
            updates = entry.get(f"{subset}_num_updates")
            if updates is not None:
                found[subset][int(float(updates))] = _point(entry, subset)
    return {subset: [points[key] for key in sorted(points)] for subset, points in found.items()}


def _entry(line: str) -> dict[str, Any]:
    """The line as JSON; empty for every other line of the log."""
    if not line.startswith("{"):
        return {}
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return {}  # the printed configuration, which is no JSON, or a line cut by a kill
    return entry if isinstance(entry, dict) else {}


def _point(entry: dict[str, Any], subset: str) -> dict[str, float]:
    point = {"epoch": int(entry["epoch"]), "updates": int(float(entry[f"{subset}_num_updates"]))}
    values = {key: entry.get(f"{subset}_{key}") for key in VALUES}
    finite = {key: float(value) for key, value in values.items() if value is not None}
    return point | {key: value for key, value in finite.items() if math.isfinite(value)}
