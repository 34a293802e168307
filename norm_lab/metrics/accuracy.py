"""The accuracy of a classifier: the percentage of sentences whose label it predicts."""

from __future__ import annotations

import re
from pathlib import Path

from norm_lab.metrics.base import BEST, Metric, Scores, name_of_split, register_metric
from norm_lab.run.flags import Configuration
from norm_plugin.checkpoints.predict import Prediction, count_correct
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines

SENTENCE = re.compile(r"P-(\d+)\t(\S+)\t(\S+)\t(-?[0-9.]+)", re.ASCII)
CALIBRATION = re.compile(r"Calibration (\S+): loss = (\S+) bits, calibrated = (\S+) bits, .+")
END = re.compile(r"Predict \S+: accuracy = .+")
AGAIN = "run the prediction again"


def read_predictions(log: Path) -> list[Prediction]:
    """Read the predictions in the order of the corpus; CommandError if they are incomplete."""
    lines = read_lines(log)
    matches = filter(None, map(SENTENCE.fullmatch, lines))
    predictions = sorted(Prediction(int(m[1]), m[2], m[3], float(m[4])) for m in matches)
    if sum(END.fullmatch(line) is not None for line in lines) != 1:
        raise CommandError(f"{log} does not end with exactly one accuracy; {AGAIN}")
    numbers = [prediction.number for prediction in predictions]
    if not numbers or numbers != list(range(len(numbers))):
        raise CommandError(f"{log} lacks sentences, or has some twice; {AGAIN}")
    return predictions


@register_metric("accuracy")
class Accuracy(Metric):
    """The accuracy of the checkpoint that was best on the validation set."""

    title = "accuracy (%)"
    headline = "accuracy"
    columns = {"accuracy": "accuracy (%)"}
    of_interest = 0.3
    loss_unit = "bits per sentence"
    losses = {
        "loss": f"validation loss of the evaluated checkpoint, {loss_unit}",
        "calibrated_loss": f"validation loss after temperature scaling, {loss_unit}",
    }
    checkpoint = BEST
    stage = "predict"
    module = "norm_plugin predict"
    item = ("P-", "sentences")

    def flags(self, subword: str, config: Configuration) -> list[str]:
        return [*super().flags(subword, config), "--calibrate", "valid"]

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        predictions = read_predictions(log)
        text = data / "tok" / f"{split}.label"
        labels = read_lines(text)
        if [prediction.label for prediction in predictions] != labels:
            raise CommandError(
                f"{log} has {len(predictions)} sentences, whose labels are not the {len(labels)} "
                f"of {text}; run the prediction again on this data"
            )
        correct = count_correct(predictions)
        best = "best checkpoint in validation"
        return {
            self.headline: {
                "score": round(100 * correct / len(predictions), 4),
                "label": f"correct labels in percent, {name_of_split(data, split)}, {best}",
                "correct": correct,
                "sentences": len(predictions),
            },
            **calibration_scores(log),
        }


def calibration_scores(log: Path) -> Scores:
    """Return the losses that ``--calibrate`` has printed; none if it was not given."""
    for match in filter(None, map(CALIBRATION.fullmatch, read_lines(log))):
        split, *losses = match.groups()
        texts = "", ", after temperature scaling across its halves"
        return {
            kind: {
                "score": float(loss),
                "label": f"bits per sentence of {split}{text}, the evaluated checkpoint",
            }
            for kind, loss, text in zip(Accuracy.losses, losses, texts)
        }
    return {}
