"""Running statistics that belong to given weights: the plain mean over training batches.

The statistics that a run saved belong to its weights at that time. Here K training batches go
through the given weights, forward only, in training mode. Each running statistic becomes the plain
mean of the statistics of the K batches, whatever it was before. For a norm that averages over a
window of batches, it is the mean of the K window averages.

- Each norm does this itself: see ``BatchStatisticsNorm.start_cumulative_average``. The first
  forward normalizes as in a warm-up, the others as after it. A norm that LayerDrop skips counts
  only its own forwards.
- The batches are those of fairseq's iterator with the run's own seed and max-tokens, epoch after
  epoch from the first. The seed also determines dropout, so the result is reproducible.
- Dropout is on. The statistics are then those that training would have gathered with these
  weights, and activations in inference keep the scale that they had in training. Without dropout
  the variances would be smaller, and the output of each norm larger than what the following layers
  were trained on.
- A buffer that only a backward pass updates, such as nu of PowerNorm, does not change, nor do the
  counts of updates.

If the data is in several shards, the batches are those of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.fairseq_input import batches_of, fairseq_errors
from norm_plugin.checkpoints.files import State
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES, Norm, NormSpec, norm_spec
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

# About 400,000 tokens with the papers' hyperparameters: an epoch of Multi30k.
DEFAULT_BATCHES = 100


_DIM = 8  # width of the norms built here to list their buffers, which do not depend on it


def running_statistics(model: State) -> set[str]:
    """Return the names of the entries of a model's state that are running statistics of its norms.

    Those are the floating-point buffers of its norms with batch statistics. A module counts as such
    a norm only if it has every buffer that the norm declares, its count of updates included, so
    that other parameters and statistics of the same name are not mistaken for one.
    """
    modules: dict[str, dict[str, str]] = {}
    for entry in model:
        module, _, name = entry.rpartition(".")
        modules.setdefault(module, {})[name] = entry
    declared = [_buffer_names(spec) for spec in map(norm_spec, NORM_TYPES) if spec.batch_statistics]
    return {
        entries[name]
        for entries in modules.values()
        for buffers in declared
        if buffers <= set(entries)
        for name in buffers
        if model[entries[name]].is_floating_point()
    }


@cache
def _buffer_names(spec: NormSpec) -> frozenset[str]:
    return frozenset(name for name, _ in spec.build(_DIM).named_buffers(recurse=False))


def reestimate(
    state: State, checkpoint: Path, batches: int = DEFAULT_BATCHES, data: Path | None = None
) -> str:
    """Replace the running statistics in ``state``, and return a line that says what was done.

    Args:
        state: the content of a checkpoint; the statistics in its model are changed in place.
        checkpoint: the file of its settings, for messages.
        batches: K.
        data: the binarized data; None: the folder of the training.

    Raises:
        CommandError: the data is missing or does not fit, or a statistic is not finite.
    """
    model, cfg, task = build_model(checkpoint, data, state)
    norms = start_plain_means(model)
    _forward(model, cfg, task, batches)
    _write_back(norms, state["model"])
    by_forwards = {name for norm in norms.values() for name in norm.forward_updated_buffers}
    state["running_stats_batches"] = batches
    names = {entry.rpartition(".")[2] for entry in running_statistics(state["model"])}
    line = f"running statistics re-estimated from {batches} batches of {cfg.task.data}"
    if of_backward := ", ".join(sorted(names - by_forwards)):
        line += f"; {of_backward} of the backward pass averaged"
    return line


def start_plain_means(model: nn.Module) -> dict[str, BatchStatisticsNorm]:
    """Start the plain mean of every norm with batch statistics; return the norms by path."""
    norms = {}
    for path, module in model.named_modules():
        if isinstance(module, BatchStatisticsNorm):
            try:
                module.start_cumulative_average()
            except ValueError as error:
                raise CommandError(f"{error}; choose --running-stats average or last") from error
            norms[path] = module
        elif isinstance(module, Norm) and module.batch_statistics:
            raise CommandError(
                f"{type(module).__name__} is not derived from BatchStatisticsNorm, so its running "
                "statistics cannot be re-estimated; choose --running-stats average or last"
            )
    return norms


def _forward(model: Any, cfg: Any, task: Any, batches: int) -> None:
    """Let a model train on some batches without gradients, which updates its running statistics.

    Args:
        batches: how many batches of the training data.

    Raises:
        CommandError: the data has no target side, or an activation is not finite.
    """
    from fairseq.utils import apply_to_sample, set_torch_seed

    from norm_plugin.models.divergence import DivergenceWatch

    DivergenceWatch(model)  # its hooks raise at a batch that is not finite
    on_gpu = torch.cuda.is_available() and not cfg.common.cpu
    device = torch.device("cuda" if on_gpu else "cpu")
    model.to(device).train()
    chosen = itertools.islice(train_batches(model, cfg, task), batches)
    set_torch_seed(cfg.common.seed)
    with torch.no_grad():
        for sample in tqdm(chosen, "re-estimating", batches, leave=False, disable=None):
            if sample.get("target") is None:
                raise CommandError(f"the training data in {cfg.task.data} has no target side")
            batch = apply_to_sample(lambda tensor: tensor.to(device), sample["net_input"])
            try:
                model(**batch)
            except FloatingPointError as error:
                what = str(error).split(";")[0]
                raise CommandError(f"the weights have diverged: {what}") from error


def train_batches(model: Any, cfg: Any, task: Any) -> Iterator[Any]:
    """Yield the batches of a run on one worker, as its trainer makes them, epoch after epoch."""
    from fairseq.utils import resolve_max_positions

    subset, limit = cfg.dataset.train_subset, cfg.dataset.max_tokens
    with fairseq_errors(f"make training batches of the data in {cfg.task.data}"):
        task.load_dataset(subset, epoch=1, combine=True)
        epochs = task.get_batch_iterator(
            dataset=task.dataset(subset),
            max_tokens=limit,
            max_sentences=cfg.dataset.batch_size,
            max_positions=resolve_max_positions(task.max_positions(), model.max_positions(), limit),
            ignore_invalid_inputs=True,
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
            seed=cfg.common.seed,
        )
    if not len(epochs):
        raise CommandError(f"the training data in {cfg.task.data} is less than one batch")
    while True:
        yield from batches_of(epochs.next_epoch_itr(), cfg.task.data)


def _write_back(norms: dict[str, BatchStatisticsNorm], model: State) -> None:
    """Copy the statistics of the norms into the state ``model``."""
    for path, norm in norms.items():
        if not norm.averaged_forwards:
            raise CommandError(
                f"no batch reached the norm {path}; give more batches with --batches"
            )
        for name in norm.forward_updated_buffers:
            model[f"{path}.{name}"].copy_(norm.get_buffer(name))
