"""The loss of a language model on the test text: perplexity, or bits or nats per character.

L is the mean loss per token in bits, to the four digits that ``norm-plugin evaluate-lm`` prints. If
tokens are words, the perplexity per word is 2^L. If tokens are characters, the loss per character
is L bits, or L ln 2 nats.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from norm_lab.metrics.base import BEST, Metric, Scores, name_of_split, register_metric
from norm_lab.run.flags import Configuration, evaluation_flags
from norm_plugin.checkpoints.evaluate_lm import Evaluation, run
from norm_plugin.declarations.flags import flag_of
from norm_plugin.io.command_line import CommandError, DivergedError
from norm_plugin.io.files import read_json

IN_SEGMENTS = "truncated_bptt_lm"
"""fairseq's task of consecutive segments."""


def tokens_of(manifest: Mapping[str, Any], split: str) -> int:
    """Return the number of tokens of a split of a running text, including ends of lines."""
    counts = manifest["counts"]["tok"][f"{split}.{manifest['source']}"]
    return int(counts["tokens"]) + int(counts["lines"])


class LanguageModelLoss(Metric):
    """The loss of the checkpoint that was best on the validation text.

    Attributes:
        unit: the unit of the corpus, ``word`` or ``character``, as in its manifest.
    """

    unit: ClassVar[str]
    headline = "loss"
    higher_is_better = False
    checkpoint = BEST
    stage = "evaluate"
    module = "norm_plugin evaluate-lm"

    def flags(self, subword: str, config: Configuration) -> list[str]:
        """Return the flags of the training's context and batch size, and of the group ``eval_lm``.

        A text in consecutive segments is evaluated in one row, since more rows would omit what does
        not fill a row, and each would start without a memory. A model that was trained on single
        sentences is evaluated on these: it has seen no later position than theirs. One that was
        trained with a first token before each window is given it, too; it is not scored.
        """
        settings = {**config["task"], **config["dataset"]}
        names = ["tokens_per_sample", "batch_size", "max_tokens"]
        names += ["sample_break_mode"] if settings.get("sample_break_mode") == "eos" else []
        flags = [
            (flag_of(name), str(settings[name])) for name in names if settings.get(name) is not None
        ]
        first_token = ["--add-bos-token"] if settings.get("add_bos_token") else []
        if config["task"]["_name"] == IN_SEGMENTS:
            flags += [("--task", IN_SEGMENTS), ("--batch-size", "1")]
        return [*chain(*flags), *first_token, *evaluation_flags(config), "--windows"]

    def evaluate(self, argv: Sequence[str], log: Path) -> Evaluation:
        return run(argv)

    def scores(self, evaluation: Evaluation, data: Path, split: str) -> Scores:
        manifest = read_json(data / "manifest.json")
        unit = (manifest.get("settings") or {}).get("unit")
        if unit != self.unit:
            raise CommandError(
                f"{self.title} needs a corpus of {self.unit}s, but {data} is one of {unit}s"
            )
        expected = tokens_of(manifest, split)
        if expected - evaluation.tokens not in (0, 1):  # segments omit the first token
            raise CommandError(
                f"{evaluation.tokens:,} tokens were evaluated, but the {split} text in {data} has "
                f"{expected:,}; prepare the data again"
            )
        label = f"{self.title}, {name_of_split(data, split)}, best checkpoint in validation"
        return {
            self.headline: {
                "score": round(self.from_bits(round(evaluation.bits, 4)), 4),
                "label": "; ".join((label, *evaluation.remarks)),
                "tokens": evaluation.tokens,
            }
        }

    def window_losses(self, evaluation: Evaluation) -> list[tuple[int, float]]:
        windows = sorted(evaluation.windows, key=lambda window: window.number)
        return [(window.tokens, round(window.bits, 4)) for window in windows]

    @abstractmethod
    def from_bits(self, bits: float) -> float:
        """Return the score for a loss of ``bits`` per token."""


@register_metric("perplexity")
class Perplexity(LanguageModelLoss):
    """2^L, for tokens that are words."""

    title = "perplexity per word"
    columns = {"loss": title}
    unit = "word"
    of_interest = 1.0
    score_unit = title
    loss_unit = "bits per word"
    losses = {"test_loss": f"loss on the test text, {loss_unit}"}

    def scores(self, evaluation: Evaluation, data: Path, split: str) -> Scores:
        """Return the perplexity, and its logarithm, in which differences are comparable."""
        (score,) = super().scores(evaluation, data, split).values()
        bits = round(evaluation.bits, 4)
        loss = {**score, "score": bits, "label": self.losses["test_loss"]}
        return {self.headline: score, "test_loss": loss}

    def from_bits(self, bits: float) -> float:
        try:
            return float(2**bits)
        except OverflowError as error:
            raise DivergedError(
                f"the loss is {bits} bits per word; the model has diverged"
            ) from error


@register_metric("bits")
class BitsACharacter(LanguageModelLoss):
    """L, for tokens that are characters."""

    title = "bits per character"
    columns = {"loss": title}
    unit = "character"
    digits = 3
    of_interest = 0.01
    score_unit = title
    loss_unit = "bits per character"

    def from_bits(self, bits: float) -> float:
        return bits


@register_metric("nats")
class NatsACharacter(BitsACharacter):
    """L ln 2, for tokens that are characters."""

    title = "nats per character"
    columns = {"loss": title}
    score_unit = title

    def from_bits(self, bits: float) -> float:
        return bits * math.log(2)
