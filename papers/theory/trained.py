"""The inputs and gradients of the encoder norms of trained models, on training batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from fairseq.modules import FairseqDropout
from torch import nn

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.fairseq_input import train_batches
from norm_plugin.checkpoints.files import load_checkpoint, num_updates
from norm_plugin.norms import Norm
from norm_plugin.norms.power_norm import PowerNorm
from norm_plugin.norms.power_norm_v import PowerNormV
from papers.theory.claim import Row
from papers.theory.models import Activations, activations_of, batch_of

BATCHES = 8
"""The number of batches of the training data, without dropout."""


class TrainedSite(NamedTuple):
    """A norm of the encoder of a trained model, in one batch.

    Attributes:
        norm: a copy of the norm in training mode, as it was before the batch.
        at: its input x, before RMS pre-scaling, and the gradient by its output y.
    """

    norm: Norm
    at: Activations
    norm_type: str
    placement: str
    updates: int | None
    batch: int


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


def trained_sites(path: Path, data: Path | None) -> Iterator[TrainedSite]:
    """Yield the encoder norms, in order, in each of the first batches of the training data.

    The batches are taken in training mode, so running statistics are updated as in training. It
    raises as :func:`read_trained`.
    """
    model, task, updates, batches = read_trained(path, data)
    norm_type, placement = str(model.cfg.norm_type), model.cfg.plan.placement["encoder"]
    for batch, sample in enumerate(batches):
        before = dict(copy.deepcopy(model).named_modules())
        pads = task.source_dictionary.pad(), task.target_dictionary.pad()
        for at in activations_of(model, batch_of(sample), *pads):
            norm = cast(Norm, before[at.site])
            yield TrainedSite(norm, at, norm_type, placement, updates, batch)


def power_norm_sites(path: Path, data: Path | None) -> Iterator[tuple[Row, TrainedSite]]:
    """Yield those of :func:`trained_sites` that are PN or PN-V, with the columns that name each."""
    for each in trained_sites(path, data):
        if isinstance(each.norm, (PowerNorm, PowerNormV)):
            row: Row = {"model": f"{each.updates} updates", "norm": each.norm_type}
            row |= {"layer_scale": each.norm.layer_scale_groups, "tokens": "real"}
            row |= {"placement": each.placement, "seed": each.batch, "site": each.at.site}
            yield row, each


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off for good, so that training mode changes batch statistics alone."""
    for module in model.modules():
        if isinstance(module, (FairseqDropout, nn.Dropout)):
            module.p = 0.0
