"""The batches that the claims are measured on: random tokens, or sentences of a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from norm_plugin.checkpoints.building import UNFIT
from norm_plugin.commands.command_line import CommandError

VOCABULARY = 1000
"""The number of types of random tokens, without fairseq's special symbols."""
SENTENCES, LENGTH = 8, 16
"""The size of a batch of random tokens; sentences of a corpus have their own lengths."""
RANDOM, REAL = "random", "real"


class Batch(NamedTuple):
    """The tokens of one batch, (B, T) each; source and target may differ in T.

    Attributes:
        source: padded on the left.
        previous: the target shifted by one, the input of the decoder.
        target: padded on the right.
    """

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)  # hashed by identity, as fairseq's dictionaries have no hash
class Batches:
    """A source of batches.

    Attributes:
        source_words, target_words: the dictionaries.
        read: batches of a corpus; empty for random tokens.
    """

    source_words: Dictionary
    target_words: Dictionary
    read: tuple[Batch, ...] = ()

    @property
    def kind(self) -> str:
        """``random`` or ``real``."""
        return REAL if self.read else RANDOM

    def draw(self, seed: int) -> Batch:
        """The batch of a seed; random tokens are uniform, without padding."""
        if self.read:
            return self.read[seed]
        dictionary, generator = self.target_words, torch.Generator().manual_seed(seed)
        source, target = (
            torch.randint(
                dictionary.nspecial, len(dictionary), (SENTENCES, LENGTH), generator=generator
            )
            for _ in range(2)
        )
        first = torch.full((SENTENCES, 1), dictionary.eos())
        return Batch(source, torch.cat([first, target[:, :-1]], dim=1), target)


def random_batches() -> Batches:
    """Batches of random tokens."""
    dictionary = Dictionary()
    for word in range(VOCABULARY):
        dictionary.add_symbol(f"w{word}")
    return Batches(dictionary, dictionary)


def real_batches(data: Path, seeds: int) -> Batches:
    """The first sentences of the training data in ``data``, one batch for each seed.

    Raises:
        CommandError: ``data`` is not a folder of fairseq-preprocess, or has too few sentences.
    """
    try:
        source, target = infer_language_pair(str(data))
        if target is None:
            raise LookupError("no file such as train.en-de.en.idx; give the folder bin")
        settings = TranslationConfig(
            data=str(data),
            source_lang=source,
            target_lang=target,
            # fairseq interpolates these from other sections of its configuration
            dataset_impl=None,
            train_subset="train",
            required_seq_len_multiple=1,
        )
        task = TranslationTask.setup_task(settings)
        task.load_dataset("train")
    except UNFIT as error:
        raise CommandError(f"cannot read the binarized data in {data}: {error}") from error
    pairs = task.dataset("train")
    if len(pairs) < seeds * SENTENCES:
        raise CommandError(
            f"{data} has {len(pairs)} sentences for training, and --seeds {seeds} needs "
            f"{SENTENCES} for each seed"
        )
    batches = tuple(
        batch_of(pairs.collater([pairs[SENTENCES * seed + index] for index in range(SENTENCES)]))
        for seed in range(seeds)
    )
    return Batches(task.source_dictionary, task.target_dictionary, batches)


def batch_of(sample: Any) -> Batch:
    """The tokens of a batch of fairseq's translation task."""
    tokens = sample["net_input"]
    return Batch(tokens["src_tokens"], tokens["prev_output_tokens"], sample["target"])
