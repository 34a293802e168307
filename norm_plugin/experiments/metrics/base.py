"""The contract of a metric: how a trained model is evaluated, and how its scores are read."""

from __future__ import annotations

import filecmp
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments.spec import AVERAGE

if TYPE_CHECKING:
    from norm_plugin.experiments.recipes import Recipe  # it imports torch

Scores = dict[str, dict[str, Any]]
"""By kind of score: ``score``, the number; ``label``, what it is; and further facts of that kind.

A ``signature`` names the score to a machine, and a ``note`` is what a reader has to know of it.
"""


class Metric(ABC):
    """One metric. Its result is a number of the test set for a run.

    Attributes:
        name: of the metric in an experiment's YAML file, set by :func:`register_metric`.
        title: of the score in a sentence and on an axis, with its unit: ``BLEU``.
        headline: the kind of score that stands for the run.
        columns: the kinds of scores that a table shows, the headline first, with their titles.
        higher_is_better: which of two scores is the better one.
        digits: after the point, in tables.
        of_interest: a difference about as large as those that papers report.
        score_unit: of the score and its differences: ``points``.
        loss_unit: of the losses that fairseq prints for the task.
        checkpoint: which one is evaluated, AVERAGE or BEST.
        stage: the name of the stage that evaluates the test set.
        module: the command of that stage. It takes the folder of the binarized data,
            ``--user-dir``, ``--gen-subset``, ``--path`` and ``--fold-norms``.
        keeps_texts: whether runs can be compared item by item, by what :meth:`texts` gives.
        item: how each line of its output begins that stands for one item, and what the items are
            called; None where it prints no such lines.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    headline: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    higher_is_better: ClassVar[bool] = True
    digits: ClassVar[int] = 2
    of_interest: ClassVar[float]
    score_unit: ClassVar[str] = "points"
    loss_unit: ClassVar[str]
    checkpoint: ClassVar[str] = AVERAGE
    stage: ClassVar[str]
    module: ClassVar[str]
    keeps_texts: ClassVar[bool] = False
    item: ClassVar[tuple[str, str] | None] = None

    def recipe_flags(self, recipe: Recipe, further: Sequence[str] = ()) -> list[str]:
        """The flags of the evaluation that a recipe gives.

        Args:
            further: flags of ``fairseq-train`` that come after those of the recipe.
        """
        from norm_plugin.experiments.recipes import generation_flags  # it imports fairseq

        return generation_flags(recipe)

    def flags(self, subword: str, recipe: Sequence[str]) -> list[str]:
        """The flags of the evaluation that decide the score.

        Args:
            subword: how the text was segmented; empty for subword-nmt.
            recipe: the flags that the recipe gives, see :meth:`recipe_flags`.
        """
        return list(recipe)

    def check_log(self, log: Path, data: Path) -> None:
        """Raise CommandError unless the output of the evaluation is complete.

        Args:
            data: the prepared corpus, with ``manifest.json``.
        """
        self.scores(log, data, "test")

    @abstractmethod
    def scores(self, log: Path, data: Path, split: str) -> Scores:
        """The scores from the output of the evaluation; CommandError where it is not complete."""

    def texts(self, log: Path, data: Path) -> Sequence[str] | None:
        """What is kept of the output, a line an item, so that runs can be compared item by item."""
        return None

    def text(self, score: float, sign: str = "") -> str:
        """A score as tables show it; with ``+`` for ``sign``, a difference of two."""
        return f"{score:{sign}.{self.digits}f}"


def score_lines(scores: Scores, digits: int) -> list[str]:
    """A line for each score with its label and signature, and the notes on them."""
    lines = []
    for score in scores.values():
        signature = f" ({score['signature']})" if "signature" in score else ""
        lines.append(f"  {score['score']:>7.{digits}f}  {score['label']}{signature}")
        lines += [f"  note     {score['note']}"] if "note" in score else []
    return lines


METRICS: dict[str, Metric] = {}
"""Every registered metric by its name."""


def register_metric(name: str) -> Callable[[type[Metric]], type[Metric]]:
    """Decorator: a metric under the name that the YAML file of an experiment gives."""

    def register(cls: type[Metric]) -> type[Metric]:
        if name in METRICS:
            raise ValueError(f"there is a metric {name!r} already, {type(METRICS[name]).__name__}")
        if cls.headline not in cls.columns:
            raise ValueError(f"{name}: its headline {cls.headline!r} is none of its columns")
        cls.name = name
        METRICS[name] = cls()
        return cls

    return register


def find_metric(name: str) -> Metric:
    """The metric of a name; CommandError for an unknown one."""
    if name not in METRICS:
        raise CommandError(f"no metric {name}; choose from {', '.join(METRICS)}")
    return METRICS[name]


def name_of_split(data: Path, split: str) -> str:
    """What a score calls a split of a prepared corpus.

    Some corpora have no public test set, and the text of valid stands in for it.
    """
    texts = sorted((data / "tok").glob(f"{split}.*"))
    valid = [text.with_name(f"valid{text.name.removeprefix(split)}") for text in texts]
    if split != "valid" and texts and all(map(_same_text, texts, valid)):
        return f"validation text, as the corpus has no {split}"
    return split


def _same_text(text: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(text, other, shallow=False)
