"""The losses in the log of a training.

fairseq prints a line every ``--log-interval`` updates, and at the end of an epoch one for the
training and one for each validation:

    2026-01-01 11:59:59 | INFO | train_inner | epoch 001: 25 / 30 loss=10.5, ..., num_updates=25
    2026-01-01 12:00:00 | INFO | train | epoch 001 | loss 10.1 | ... | num_updates 30 | ...
    2026-01-01 12:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.8 | ...

A resumed run appends to its log. If an epoch was trained twice, its last line counts. The training
loss of an epoch is missing if the run was killed between saving the checkpoint of that epoch and
printing the line.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from norm_plugin.io.files import read_lines

LINE = re.compile(r"\| INFO \| (train|valid|train_inner) \| epoch (\d+)(?: \||:)(.*)")
SUBSETS = ("train", "valid", "train_inner")
VALUES = ("loss", "nll_loss")
"""The values that are read: the criterion and the negative log-likelihood, in bits per token."""
Curves = dict[str, list[dict[str, float]]]


def curves_of_log(log: Path) -> Curves:
    """Return the losses of each subset, in order of updates.

    Returns:
        For ``train`` (means over epochs), ``valid`` and ``train_inner`` (means since the previous
        line) a list of points with ``epoch``, ``updates`` and the finite ones of VALUES.

    Raises:
        CommandError: the file cannot be read.
    """
    curves: dict[str, dict[int, dict[str, float]]] = {subset: {} for subset in SUBSETS}
    for line in read_lines(log):
        match = LINE.search(line)
        if match:
            point = _point(int(match[2]), match[3])
            if "updates" in point:
                curves[match[1]][int(point["updates"])] = point
    return {subset: [points[key] for key in sorted(points)] for subset, points in curves.items()}


def _point(epoch: int, text: str) -> dict[str, float]:
    """Return a point of a curve from ``key value`` pairs or ``key=value`` pairs."""
    pairs = r"(\w+) (\S+)(?= \||$)" if " | " in text else r"(\w+)=([^,\s]+),"
    fields = dict(re.findall(pairs, text.strip()))
    point: dict[str, float] = {"epoch": epoch}
    if "num_updates" in fields:
        point["updates"] = int(fields["num_updates"])
    values = {key: float(fields[key]) for key in VALUES if key in fields}
    return point | {key: value for key, value in values.items() if math.isfinite(value)}
