"""Accuracy of a classifier: the percentage of sentences whose label it predicts."""

from __future__ import annotations

from pathlib import Path

from norm_plugin.commands.command_line import CommandError, read_lines
from norm_plugin.experiments.metrics.base import (
    Metric,
    Scores,
    name_of_split,
    register_metric,
)
from norm_plugin.experiments.predictions import read_predictions
from norm_plugin.experiments.spec import BEST


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

    def check_log(self, log: Path, data: Path) -> None:
        self.scores(log, data, "test")

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        predictions = read_predictions(log)
        text = data / "tok" / f"{split}.label"
        labels = read_lines(text)
        if [one.label for one in predictions] != labels:
            raise CommandError(
                f"{log} holds {len(predictions)} sentences, and their labels are not the "
                f"{len(labels)} of {text}; run the prediction again on this data"
            )
        named = name_of_split(data, split)
        correct = sum(one.label == one.predicted for one in predictions)
        return {
            self.headline: {
                "score": round(100 * correct / len(predictions), 4),
                "label": f"correct labels in percent, {named}, best checkpoint in validation",
                "correct": correct,
                "sentences": len(predictions),
            }
        }
