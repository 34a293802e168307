"""What fairseq's trainer tells no model, told to it here.

fairseq has no hook for these moments, so these of its functions are wrapped, which then do what
they always did. Every worker calls them, so a collective operation may stand in a wrapper; a model
without norms of this plugin notices nothing.

    Trainer.__init__                   the task of a run, whose ``train_step`` is wrapped where it
                                       is defined: some tasks never come to FairseqTask's
    FairseqTask.train_step             what the loss is multiplied with; the updates done; whether
    and those of other tasks           the batch is a dummy, which a worker out of data computes
                                       to keep step
    Trainer.load_checkpoint            a run goes on from a checkpoint, or begins with its weights
    Trainer.begin_valid_epoch          a validation begins
    checkpoint_utils.save_checkpoint   the run is about to be saved
    EMA.__init__                       --store-ema multiplies every entry of the model by its
                                       decay, which no counter bears
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.models.ema.ema import EMA
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor, nn

from norm_plugin.models.layers import ignoring_every_position
from norm_plugin.models.resuming import check_resuming
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.models.wrapping import Function, wrap_once
from norm_plugin.norms.base.statistics import BatchStatisticsNorm, average_running_statistics


def loss_scale(optimizer: Any, like: Tensor) -> float | Tensor:
    """The factor that ``optimizer.backward`` multiplies the loss with."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else scaler.scale(torch.ones((), device=like.device))


def tell_norms(model: nn.Module, optimizer: Any, update_num: int) -> None:
    """Let every norm with batch statistics know the factor in gradients, and the model the updates.

    ``FairseqTask.train_step`` tells the model the updates too; not every other task does.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    if norms:
        scale = loss_scale(optimizer, norms[0].weight)
        for norm in norms:
            norm.loss_scale = scale
    for module in model.modules():
        if isinstance(module, NormTransformerModel):
            module.set_num_updates(update_num)


TRAIN_STEP = ("sample", "model", "criterion", "optimizer", "update_num", "ignore_grad")
"""The arguments of ``FairseqTask.train_step``; the trainer gives them by name."""


def around_train_step(train_step: Function) -> Function:
    """Around the ``train_step`` of a task. One that calls its super's may be wrapped as well."""

    @functools.wraps(train_step)
    def wrapper(task: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(TRAIN_STEP, args)), **kwargs}
        tell_norms(given["model"], given["optimizer"], given["update_num"])
        dummy: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if given.get("ignore_grad", False):
            dummy = ignoring_every_position(given["model"])
        with dummy:
            return train_step(task, *args, **kwargs)

    return wrapper


def around_trainer_init(init: Function) -> Function:
    """Around ``Trainer.__init__``: the task's own ``train_step`` tells the norms too."""

    @functools.wraps(init)
    def wrapper(trainer: Any, cfg: Any, task: Any, *args: Any, **kwargs: Any) -> None:
        init(trainer, cfg, task, *args, **kwargs)
        # Where it is defined, so that no class holds a copy of what it inherits
        owner = next((cls for cls in type(task).__mro__ if "train_step" in vars(cls)), None)
        if owner is not None:
            wrap_once(owner, "train_step", around_train_step)

    return wrapper


def around_load_checkpoint(load_checkpoint: Function) -> Function:
    """Around ``Trainer.load_checkpoint``: every worker refuses a checkpoint of other norms."""

    @functools.wraps(load_checkpoint)
    def wrapper(
        trainer: Any, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        transformer = isinstance(trainer.get_model(), TransformerModelBase)
        if transformer and PathManager.isfile(filename):
            check_resuming(filename, trainer.cfg.model, anew=reset_optimizer)
        return load_checkpoint(trainer, filename, reset_optimizer, *args, **kwargs)

    return wrapper


def around_begin_valid_epoch(begin_valid_epoch: Function) -> Function:
    """Around ``Trainer.begin_valid_epoch``."""

    @functools.wraps(begin_valid_epoch)
    def wrapper(trainer: Any, epoch: int) -> Any:
        average_running_statistics(trainer.get_model())
        return begin_valid_epoch(trainer, epoch)

    return wrapper


def around_save_checkpoint(save_checkpoint: Function) -> Function:
    """Around ``checkpoint_utils.save_checkpoint``."""

    @functools.wraps(save_checkpoint)
    def wrapper(cfg: Any, trainer: Any, *args: Any) -> Any:
        average_running_statistics(trainer.get_model())
        return save_checkpoint(cfg, trainer, *args)

    return wrapper


def around_ema_init(init: Function) -> Function:
    """Around ``EMA.__init__``: counters are copied from the model, not averaged."""

    @functools.wraps(init)
    def wrapper(ema: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        init(ema, model, *args, **kwargs)
        counters = {name for name, value in model.named_buffers() if not value.is_floating_point()}
        ema.skip_keys = {*ema.skip_keys, *counters}

    return wrapper


def install() -> None:
    """Wrap fairseq's functions, once a process."""
    for owner, name, around in (
        (FairseqTask, "train_step", around_train_step),
        (Trainer, "__init__", around_trainer_init),
        (Trainer, "load_checkpoint", around_load_checkpoint),
        (Trainer, "begin_valid_epoch", around_begin_valid_epoch),
        (checkpoint_utils, "save_checkpoint", around_save_checkpoint),
        (EMA, "__init__", around_ema_init),
    ):
        wrap_once(owner, name, around)
