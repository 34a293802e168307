"""Accuracy of a classifier: the percentage of sentences whose label it predicts.

``norm-plugin predict`` prints a line for each sentence, and the accuracy:

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
from norm_plugin.experiments.metrics.base import (
    Metric,
    Scores,
    name_of_split,
    register_metric,
)
from norm_plugin.experiments.spec import BEST

SENTENCE = re.compile(r"P-(\d+)\t(\S+)\t(\S+)\t(-?[0-9.]+)", re.ASCII)
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
    for number, label, predicted, log_probability in predictions:
        yield f"P-{number}\t{label}\t{predicted}\t{log_probability:.4f}"
    correct = count_correct(predictions)
    share = 100 * correct / len(predictions)
    yield f"Predict {split}: accuracy = {share:.2f}, {correct} of {len(predictions)}"


def count_correct(predictions: Sequence[Prediction]) -> int:
    """The number of sentences whose label was predicted."""
    return sum(label == predicted for _, label, predicted, _ in predictions)


def read_predictions(log: Path) -> list[Prediction]:
    """The predictions in the order of the corpus; CommandError for an output that is not whole."""
    lines = read_lines(log)
    matches = filter(None, map(SENTENCE.fullmatch, lines))
    predictions = sorted(Prediction(int(m[1]), m[2], m[3], float(m[4])) for m in matches)
    if sum(END.fullmatch(line) is not None for line in lines) != 1:
        raise CommandError(f"{log} does not end with the accuracy, once; {AGAIN}")
    numbers = [prediction.number for prediction in predictions]
    if not numbers or numbers != list(range(len(numbers))):
        raise CommandError(f"{log} lacks sentences, or has some twice; {AGAIN}")
    return predictions


@register_metric("accuracy")
class Accuracy(Metric):
    """Accuracy of the checkpoint that was best on the validation set."""

    title = "accuracy (%)"
    headline = "accuracy"
    columns = {"accuracy": "accuracy (%)"}
    of_interest = 0.3
    loss_unit = "bits a sentence"
    checkpoint = BEST
    stage = "predict"
    module = "norm_plugin predict"
    item = ("P-", "sentences")

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        predictions = read_predictions(log)
        text = data / "tok" / f"{split}.label"
        labels = read_lines(text)
        if [prediction.label for prediction in predictions] != labels:
            raise CommandError(
                f"{log} holds {len(predictions)} sentences, and their labels are not the "
                f"{len(labels)} of {text}; run the prediction again on this data"
            )
        correct = count_correct(predictions)
        best = "best checkpoint in validation"
        return {
            self.headline: {
                "score": round(100 * correct / len(predictions), 4),
                "label": f"correct labels in percent, {name_of_split(data, split)}, {best}",
                "correct": correct,
                "sentences": len(predictions),
            }
        }
