"""The inputs and gradients of the encoder norms of trained models, on training batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.modules import FairseqDropout
from torch import nn

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.fairseq_input import train_batches
from norm_plugin.checkpoints.files import load_checkpoint, num_updates
from norm_plugin.norms.power_norm_v import PowerNormV
from papers.theory.claim import Row
from papers.theory.models import Activations, activations_of, batch_of

BATCHES = 8
"""The number of batches of the training data, without dropout."""


def read_trained(path: Path, data: Path | None) -> tuple[Any, Any, int | None, Iterator[Any]]:
    """Return the model of a checkpoint without dropout, its task, its updates and first batches.

    Without ``data``, these are of the data of its training.

    Raises:
        CommandError: the checkpoint cannot be read, or does not fit the data.
    """
    state = load_checkpoint(path)
    model, cfg, task = build_model(path, data, state)
    without_dropout(model.train())
    batches = itertools.islice(train_batches(model, cfg, task), BATCHES)
    return model, task, num_updates(state), batches


def power_norm_sites(
    path: Path, data: Path | None
) -> Iterator[tuple[Row, PowerNormV, Activations]]:
    """Yield each encoder norm that is PN or PN-V, in each of the first batches of training data.

    The batches are taken in training mode, so running statistics are updated as in training. It
    raises as :func:`read_trained`.

    Yields:
        the columns that name the norm; a copy of it in training mode, as it was before the batch;
        its input, before RMS pre-scaling, with the gradient by its output.
    """
    model, task, updates, batches = read_trained(path, data)
    pads = task.source_dictionary.pad(), task.target_dictionary.pad()
    for batch, sample in enumerate(batches):
        before = dict(copy.deepcopy(model).named_modules())
        for at in activations_of(model, batch_of(sample), *pads):
            norm = before[at.site]
            if isinstance(norm, PowerNormV):  # or PowerNorm, which derives from it
                row: Row = {"model": f"{updates} updates", "norm": str(model.cfg.norm_type)}
                row |= {"layer_scale": norm.layer_scale_groups, "tokens": "real"}
                row |= {"placement": model.cfg.plan.placement["encoder"]}
                yield {**row, "seed": batch, "site": at.site}, norm, at


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off for good, so that training mode changes batch statistics alone."""
    for module in model.modules():
        if isinstance(module, (FairseqDropout, nn.Dropout)):
            module.p = 0.0
