"""Batches to measure on: random tokens, or sentences of a binarized corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from norm_plugin.checkpoints.building import UNFIT
from norm_plugin.commands.command_line import CommandError

WORDS = 1000
"""The vocabulary of random tokens, without fairseq's symbols."""
SENTENCES, LENGTH = 8, 16
"""Of a batch; sentences of a corpus have their own lengths."""
RANDOM, REAL = "random", "real"


class Batch(NamedTuple):
    """Tokens of one batch, (B, T) each; the sides may differ in T.

    Attributes:
        source: padded on the left.
        previous: of the target, shifted by one, as the decoder gets them.
        target: padded on the right.
    """

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)  # equal to itself only: fairseq's dictionaries have no hash
class Batches:
    """Where batches come from.

    Attributes:
        source_words, target_words: the dictionaries.
        found: batches that were read; empty: they are made up.
    """

    source_words: Dictionary
    target_words: Dictionary
    found: tuple[Batch, ...] = ()

    @property
    def kind(self) -> str:
        """``random`` or ``real``."""
        return REAL if self.found else RANDOM

    def draw(self, seed: int) -> Batch:
        """The batch of a seed; made-up ones are uniform tokens without padding."""
        if self.found:
            return self.found[seed]
        words, generator = self.target_words, torch.Generator().manual_seed(seed)
        source, target = (
            torch.randint(words.nspecial, len(words), (SENTENCES, LENGTH), generator=generator)
            for _ in range(2)
        )
        first = torch.full((SENTENCES, 1), words.eos())
        return Batch(source, torch.cat([first, target[:, :-1]], dim=1), target)


def random_batches() -> Batches:
    """Batches of a made-up dictionary."""
    words = Dictionary()
    for word in range(WORDS):
        words.add_symbol(f"w{word}")
    return Batches(words, words)


def real_batches(data: Path, seeds: int) -> Batches:
    """The first sentences of the training data in ``data``, a batch for each seed.

    Args:
        data: a folder that fairseq-preprocess has written.
        seeds: how many batches.

    Raises:
        CommandError: there is no such data, or it has too few sentences.
    """
    if not data.is_dir():
        raise CommandError(f"--data {data} is not a folder; give one with binarized data")
    try:
        task = TranslationTask.setup_task(settings_of(data))
        task.load_dataset("train")
    except UNFIT as error:
        raise CommandError(f"cannot read the binarized data in {data}: {error}") from error
    pairs = task.dataset("train")
    if len(pairs) < seeds * SENTENCES:
        raise CommandError(
            f"{data} has {len(pairs)} sentences for training, and --seeds {seeds} needs "
            f"{SENTENCES} for each seed"
        )
    found = tuple(
        of_sample(pairs.collater([pairs[SENTENCES * seed + one] for one in range(SENTENCES)]))
        for seed in range(seeds)
    )
    return Batches(task.source_dictionary, task.target_dictionary, found)


def settings_of(data: Path) -> TranslationConfig:
    """fairseq's settings of a task; those that it would read from others are given here."""
    return TranslationConfig(
        data=str(data), dataset_impl=None, train_subset="train", required_seq_len_multiple=1
    )


def of_sample(sample: Any) -> Batch:
    """The tokens of a batch of fairseq's translation task."""
    tokens = sample["net_input"]
    return Batch(tokens["src_tokens"], tokens["prev_output_tokens"], sample["target"])
