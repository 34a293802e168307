"""The contract of a metric: how a trained model is evaluated and scored."""

from __future__ import annotations

import filecmp
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from norm_lab.run.flags import Configuration, generation_flags
from norm_plugin.io.command_line import CommandError

AVERAGE, BEST = "average", "best"
"""Which checkpoint is evaluated: the average of the last ones, or the best in validation."""


Scores = dict[str, dict[str, Any]]
"""For each kind of score: ``score``, the number; ``label``, its description; and other values.

``signature`` is sacrebleu's, and ``note`` is shown with the score.
"""


class Metric(ABC):
    """A metric: how a model is evaluated on the test set and scored.

    Attributes:
        name: the name in an experiment's YAML file, set by :func:`register_metric`.
        title: the name of the score in sentences and on axes, with its unit: ``BLEU``.
        headline: the kind of score that represents the run.
        columns: the kinds of scores that a table shows, the headline first, with their titles.
        losses: the kinds of scores that are losses in ``loss_unit`` and may be outcomes of a study,
            with their titles.
        higher_is_better: whether a higher score is better; of a loss, a lower one is.
        digits: decimal places in tables.
        of_interest: the smallest difference that matters, about as large as papers report.
        score_unit: the unit of the score and its differences: ``points``.
        units: the units of the kinds of scores that have another.
        loss_unit: the unit of the losses that fairseq prints for the task.
        checkpoint: the checkpoint that is evaluated, AVERAGE or BEST.
        stage: the name of the stage that evaluates the test set.
        module: the command of that stage, as a user types it after ``python -m``.
        has_item_outputs: whether runs can be compared item by item, by :meth:`item_outputs`.
        item: the prefix of the lines of its output that each report one item, and the name of the
            items; None if it prints no such lines during the evaluation.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    headline: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    losses: ClassVar[Mapping[str, str]] = {}
    higher_is_better: ClassVar[bool] = True
    digits: ClassVar[int] = 2
    of_interest: ClassVar[float]
    score_unit: ClassVar[str] = "points"
    units: ClassVar[Mapping[str, str]] = {}
    loss_unit: ClassVar[str]
    checkpoint: ClassVar[str] = AVERAGE
    stage: ClassVar[str]
    module: ClassVar[str]
    has_item_outputs: ClassVar[bool] = False
    item: ClassVar[tuple[str, str] | None] = None

    def flags(self, subword: str, config: Configuration) -> list[str]:
        """Return the flags of the evaluation that affect the score.

        Args:
            subword: the subword method; empty for subword-nmt.
            config: the settings of the run.
        """
        return generation_flags(config)

    @abstractmethod
    def evaluate(self, argv: Sequence[str], log: Path) -> Any:
        """Evaluate a checkpoint, and return what the methods below take as ``evaluation``.

        Args:
            argv: the arguments of the command ``module``: the folder of the binarized data,
                ``--user-dir``, ``--gen-subset``, ``--path``, :meth:`flags` and ``--fold-norms``.
            log: the file that stdout is written to; it is complete when this has returned.
        """

    @abstractmethod
    def scores(self, evaluation: Any, data: Path, split: str) -> Scores:
        """Return the scores; CommandError if the evaluation is not of this data."""

    def item_outputs(self, evaluation: Any, data: Path) -> Sequence[str] | None:
        """Return one line per item, kept to compare runs item by item; None to keep nothing."""
        return None

    def window_losses(self, evaluation: Any) -> list[tuple[int, float]] | None:
        """Return the tokens and the loss in bits of each window of a text, in its order."""
        return None

    def text(self, score: float, sign: str = "") -> str:
        """Return a score as shown in tables; with ``sign="+"`` a difference of scores."""
        return f"{score:{sign}.{self.digits}f}"


def score_lines(scores: Scores, digits: int) -> list[str]:
    """Return a line for each score with its label and signature, and one for its note."""
    lines = []
    for score in scores.values():
        signature = f" ({score['signature']})" if "signature" in score else ""
        lines.append(f"  {score['score']:>7.{digits}f}  {score['label']}{signature}")
        lines += [f"  note     {score['note']}"] if "note" in score else []
    return lines


METRICS: dict[str, Metric] = {}
"""Every registered metric, by name."""


def register_metric(name: str) -> Callable[[type[Metric]], type[Metric]]:
    """Decorator that registers a metric under its name in the YAML files of experiments."""

    def register(cls: type[Metric]) -> type[Metric]:
        if name in METRICS:
            raise ValueError(f"metric {name!r} is registered twice: {type(METRICS[name]).__name__}")

        cls.name = name
        METRICS[name] = cls()
        return cls

    return register


def find_metric(name: str) -> Metric:
    """Return the metric of this name; raise CommandError if it is unknown."""
    if name not in METRICS:
        raise CommandError(f"there is no metric {name}; choose from {', '.join(METRICS)}")
    return METRICS[name]


def name_of_split(data: Path, split: str) -> str:
    """Return the name of a split of a prepared corpus for the label of a score.

    Some corpora have no public test set, and use the validation text instead.
    """
    texts = sorted((data / "tok").glob(f"{split}.*"))
    valid = [text.with_name(f"valid{text.name.removeprefix(split)}") for text in texts]
    same = (b.is_file() and filecmp.cmp(a, b, shallow=False) for a, b in zip(texts, valid))
    if split != "valid" and texts and all(same):
        return f"validation text, as the corpus has no {split}"
    return split
