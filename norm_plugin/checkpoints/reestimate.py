"""Running statistics that belong to given weights: the plain mean over training batches.

The statistics that a run saved belong to the weights it had then. Here K training batches go
through the weights as they are, forward only, in training mode, and each running statistic
becomes the plain mean of the K batches' own ones (for ``unified`` and ``mabn``, of those of
their windows), whatever it was before:

- In its first forward a norm starts from 0, uses the statistics of the batch itself, as in a
  warm-up, and gives it the weight 1; the k-th forward has the weight 1/k, and normalizes as
  after the warm-up. A norm that LayerDrop passes over counts its own forwards.
- The batches are those of fairseq's iterator with the run's own seed and max-tokens, epoch
  after epoch from the first. That seed also fixes dropout: the result is the same each time.
- Dropout is on. The statistics are then what training would have gathered with these weights,
  so this differs from ``average`` and ``last`` in the weights alone; and the activations in
  inference keep the scale that, dropout averaged out, they had in training. Without dropout the
  variances would be smaller, and each norm's output larger than the layers after it have learned.
- What only a backward pass moves (nu of ``powernorm``, psi and the gradients' window of
  ``unified`` and ``mabn``) stays as it was, and so do the counts of updates.

Data in several shards: the batches are those of the first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from norm_plugin.checkpoints.building import UNFIT, build_model
from norm_plugin.checkpoints.files import State
from norm_plugin.checkpoints.running_stats import moved_by_forward, running_statistics, spec_of
from norm_plugin.commands.command_line import CommandError
from norm_plugin.norms import Norm
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

# About 400,000 tokens in the papers' recipes: an epoch of Multi30k.
DEFAULT_BATCHES = 100


class PlainMean:
    """A forward pre-hook that makes a norm's running statistics the mean over its forwards.

    Attributes:
        forwards: how many there were.
    """

    def __init__(self, norm: Norm) -> None:
        spec = spec_of(norm)
        self.names = moved_by_forward(spec)
        self.options = {option.name for option in spec.options}
        if not self.options & {"momentum", "alpha_fwd"}:
            raise CommandError(
                f"norm {spec.name} has neither an option momentum nor alpha_fwd, so its running "
                "statistics cannot be re-estimated; choose --running-stats average or last"
            )
        self.forwards = 0

    def __call__(self, norm: Any, inputs: Any) -> None:
        """Give the forward that follows its weight."""
        first = self.forwards == 0
        if first and isinstance(norm, BatchStatisticsNorm):
            norm.set_num_updates(norm.updates_counted)  # these forwards are no updates of the run
        self.forwards += 1
        if first:
            for name in self.names:
                getattr(norm, name).zero_()
        weight = 1 / self.forwards
        if "momentum" in self.options:
            norm.momentum = weight
        else:
            norm.alpha_fwd = 1 - weight
        if "warmup_updates" in self.options:
            norm.warmup_updates = sys.maxsize if first else 0


def reestimate(
    state: State, checkpoint: Path, batches: int = DEFAULT_BATCHES, data: Path | None = None
) -> str:
    """Replace the running statistics in ``state``; returns the line that says what was done.

    Args:
        state: of a checkpoint; the statistics in its model are changed in place.
        checkpoint: a file with the same model, whose settings are used.
        batches: K.
        data: the binarized data; None: the folder that the run was trained on.

    Raises:
        CommandError: the data is missing or does not fit, or a statistic is not finite.
    """
    model, cfg, task = build_model(checkpoint, data, weights=state["model"])
    hooks = _hook(model)
    _forward(model, cfg, task, batches)
    _write_back(hooks, dict(model.named_modules()), state["model"])
    moved = {name for hook in hooks.values() for name in hook.names}
    state["running_stats_batches"] = batches
    names = {entry.rpartition(".")[2] for entry in running_statistics(state["model"])}
    kept = sorted(names - moved)
    line = f"running statistics re-estimated from {batches} batches of {cfg.task.data}"
    return line + (f"; {', '.join(kept)} of the backward pass as averaged" if kept else "")


def _hook(model: nn.Module) -> dict[str, PlainMean]:
    """Put a PlainMean before every norm with batch statistics; by the path of the norm."""
    hooks = {}
    for path, module in model.named_modules():
        if isinstance(module, Norm) and module.batch_statistics:
            hooks[path] = PlainMean(module)
            module.register_forward_pre_hook(hooks[path])
    return hooks


def _forward(model: Any, cfg: Any, task: Any, batches: int) -> None:
    from fairseq.utils import apply_to_sample, set_torch_seed

    from norm_plugin.models.divergence import DivergenceWatch

    if getattr(model, "watch", None) is None:  # a batch that is not finite moves no statistic
        model.watch = DivergenceWatch(model)
    on_gpu = torch.cuda.is_available() and not cfg.common.cpu
    device = torch.device("cuda" if on_gpu else "cpu")
    model.to(device).train()
    chosen = itertools.islice(train_batches(model, cfg, task), batches)
    set_torch_seed(cfg.common.seed)
    with torch.no_grad():
        for sample in tqdm(chosen, "re-estimating", batches, leave=False, disable=None):
            batch = apply_to_sample(lambda tensor: tensor.to(device), sample["net_input"])
            try:
                model(**batch)
            except FloatingPointError as error:
                what = str(error).split(";")[0]
                raise CommandError(f"the weights have diverged: {what}") from error


def train_batches(model: Any, cfg: Any, task: Any) -> Iterator[Any]:
    """The batches of a run on one worker, as its trainer makes them, epoch after epoch."""
    from fairseq.utils import resolve_max_positions

    subset, limit = cfg.dataset.train_subset, cfg.dataset.max_tokens
    try:
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
    except UNFIT as error:
        raise CommandError(
            f"cannot make training batches of the data in {cfg.task.data}: {error}"
        ) from error
    if not len(epochs):
        raise CommandError(f"the training data in {cfg.task.data} does not fill one batch")
    while True:
        yield from epochs.next_epoch_itr()


def _write_back(hooks: dict[str, PlainMean], modules: dict[str, Any], model: State) -> None:
    """Copy the statistics of the hooked norms into the state ``model``."""
    for path, hook in hooks.items():
        if not hook.forwards:
            raise CommandError(
                f"no batch reached the norm {path}; give more of them with --batches"
            )
        for name in hook.names:
            model[f"{path}.{name}"].copy_(getattr(modules[path], name))
