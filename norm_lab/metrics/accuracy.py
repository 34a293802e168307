"""The accuracy of a classifier: the percentage of sentences whose label it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from norm_lab.metrics.base import BEST, Metric, Scores, name_of_split, register_metric
from norm_lab.run.flags import Configuration
from norm_plugin.checkpoints import predict
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines

VALID = "valid"
"""The split whose loss is scored."""


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

    def flags(self, subword: str, config: Configuration) -> list[str]:
        return [*super().flags(subword, config), "--calibrate", VALID]

    def evaluate(self, argv: Sequence[str], log: Path) -> predict.Evaluation:
        return predict.run(argv)

    def scores(self, evaluation: predict.Evaluation, data: Path, split: str) -> Scores:
        predictions, calibration = evaluation
        text = data / "tok" / f"{split}.label"
        labels = read_lines(text)
        if [prediction.label for prediction in predictions] != labels:
            raise CommandError(
                f"the labels of the {len(predictions)} sentences that were predicted are not the "
                f"{len(labels)} of {text}; prepare the data again"
            )
        correct = predict.count_correct(predictions)
        best = "best checkpoint in validation"
        texts = "", ", after temperature scaling across its halves"
        losses = () if calibration is None else (calibration.loss, calibration.calibrated)
        return {
            self.headline: {
                "score": round(100 * correct / len(predictions), 4),
                "label": f"correct labels in percent, {name_of_split(data, split)}, {best}",
                "correct": correct,
                "sentences": len(predictions),
            },
            **{
                kind: {
                    "score": round(loss, 6),
                    "label": f"bits per sentence of {VALID}{text}, the evaluated checkpoint",
                }
                for kind, loss, text in zip(self.losses, losses, texts)
            },
        }
