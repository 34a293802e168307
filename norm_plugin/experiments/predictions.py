"""The output of ``norm_plugin.experiments.predict``: a line for each sentence, and the accuracy.

    P-0	1	0	-0.7133
    P-1	0	0	-0.1034
    Predict test: accuracy = 50.00, 1 of 2

A line names the sentence by its number in the corpus, its label, the predicted label, and the
natural logarithm of the probability of that prediction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from norm_plugin.commands.command_line import CommandError, read_lines

SENTENCE = re.compile(r"P-([0-9]{1,8})\t(\S+)\t(\S+)\t(-?[0-9.]{1,20})")
END = re.compile(r"Predict \S+: accuracy = .+")
AGAIN = "run the prediction again"


class Prediction(NamedTuple):
    """What is said of one sentence."""

    number: int
    label: str
    predicted: str
    log_probability: float


def lines_of(predictions: Sequence[Prediction], split: str) -> Iterator[str]:
    """The lines of the output."""
    for one in predictions:
        yield f"P-{one.number}\t{one.label}\t{one.predicted}\t{one.log_probability:.4f}"
    correct = sum(one.label == one.predicted for one in predictions)
    share = 100 * correct / len(predictions)
    yield f"Predict {split}: accuracy = {share:.2f}, {correct} of {len(predictions)}"


def read_predictions(log: Path) -> list[Prediction]:
    """The predictions in the order of the corpus; CommandError for an output that is not whole."""
    found: dict[int, Prediction] = {}
    ends = 0
    for place, line in enumerate(read_lines(log), 1):
        ends += END.fullmatch(line) is not None
        if not line.startswith("P-"):
            continue
        match = SENTENCE.fullmatch(line)
        if match is None:
            raise CommandError(f"{log}, line {place}: {line[:40]!r} is no prediction; {AGAIN}")
        number = int(match[1])
        if number in found:
            raise CommandError(f"{log} has P-{number} twice; {AGAIN}")
        found[number] = Prediction(number, match[2], match[3], float(match[4]))
    if ends != 1:
        problem = "holds several predictions" if ends else "does not end with the accuracy"
        raise CommandError(f"{log} {problem}; {AGAIN}")
    missing = [number for number in range(max(found, default=0) + 1) if number not in found]
    if missing:
        raise CommandError(f"{log} lacks P-{missing[0]}; {AGAIN}")
    return [found[number] for number in sorted(found)]
