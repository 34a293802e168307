"""Consecutive segments of a text for models with a memory: fairseq's task ``truncated_bptt_lm``.

The task is fairseq's own example, which is imported here so that ``--task truncated_bptt_lm`` is
available with ``--user-dir norm_plugin``. It cuts the text into B parts of equal length, and batch
i has segment i of each part, so that segment i of a row continues segment i - 1 of that row.

For a model that calls :func:`number_segments`, its batches have two additions:

    segment   the number i of the batch in the text, an input of the model. The task itself does not
              tell a model where the text begins again, so a memory would carry over from the end
              of an epoch to its beginning, and from training to validation
    target    also the next token of the last position of a segment, which the task omits: one
              token per segment would be neither trained on nor scored, but counted

Batches of single sentences get their lengths, which ``fairseq-interactive`` requires.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.examples.truncated_bptt.truncated_bptt_lm_task import (
    TruncatedBPTTDataset,
    TruncatedBPTTLMTask,
)
from torch import Tensor

logger = logging.getLogger(__name__)

TASK = "truncated_bptt_lm"
SEGMENT = "segment"


def number_segments(task: Any) -> None:
    """Add the segment number to the batches of ``task``, if it is ``TASK``."""
    if isinstance(task, TruncatedBPTTLMTask) and "get_batch_iterator" not in vars(task):
        task.get_batch_iterator = functools.partial(numbered_iterator, task.get_batch_iterator)


def numbered_iterator(get_batch_iterator: Callable[..., Any], dataset: Any, **kwargs: Any) -> Any:
    """Return fairseq's iterator over ``dataset`` with numbered segments, unless it has single
    sentences, which are scored or continued and are no segments of a text."""
    iterator = get_batch_iterator(dataset=dataset, **kwargs)
    if isinstance(dataset, TruncatedBPTTDataset):
        iterator.collate_fn = functools.partial(numbered, iterator.collate_fn, dataset)
    else:
        iterator.collate_fn = functools.partial(with_lengths, iterator.collate_fn)
    return iterator


def with_lengths(collate: Callable[..., Any], items: list[tuple[int, Any]]) -> Any:
    """Return the collated batch of one sentence with its length, for ``fairseq-interactive``."""
    batch = collate(items)
    tokens = batch["net_input"]["src_tokens"]
    batch["net_input"]["src_lengths"] = tokens.new_full((len(tokens),), tokens.size(1))
    return batch


def numbered(collate: Callable[..., Any], dataset: Any, items: list[tuple[int, Any]]) -> Any:
    """Return the collated batch of one item of ``dataset``, with its number and its segments."""
    ((number, segments),) = items
    batch = collate(items)
    batch["net_input"][SEGMENT] = number
    target = batch["target"]
    for row, block in enumerate(dataset.my_indices[:, number].tolist()):
        if block + 1 < len(dataset.data):
            target[row, len(segments[row]) - 1] = dataset.data[block + 1][0]
            continue
        batch["ntokens"] -= target.size(1) - len(segments[row]) + 1  # the text ends here
    return batch


@dataclass
class Memory:
    """The states that a model keeps of earlier segments.

    Attributes:
        segment: the number of the last segment.
        states: per layer, (M, B, C), without gradient.
    """

    segment: int
    states: list[Tensor]


def joined(old: Tensor, new: Tensor, length: int) -> Tensor:
    """Copy the last ``length`` >= 1 positions of old, (M, B, C), and then new, (T, B, C)."""
    start = max(0, old.size(0) + new.size(0) - length)
    return torch.cat([old[start:], new[-length:]]).detach()


def before_segment(memory: Memory | None, segment: int, rows: int) -> list[Tensor]:
    """Return the states per layer kept before ``segment``; empty if it did not precede.

    Raises:
        ValueError: the states have another number of rows.
    """
    if memory is None or memory.segment != segment - 1:
        seen = "none" if memory is None else f"segment {memory.segment}"
        logger.warning(
            "segment %d starts with an empty memory: the last one seen is %s", segment, seen
        )
        return []
    if (held := memory.states[0].size(1)) != rows:
        raise ValueError(
            f"segment {segment} has {rows} rows, but the memory of the previous one has {held}: "
            "give the --batch-size that the run was started with, or --reset-dataloader"
        )
    return memory.states
