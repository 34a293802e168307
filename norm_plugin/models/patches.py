"""Every function of fairseq that the plugin wraps, since fairseq has no hook for these moments.

A wrapper calls the function that it wraps. Except for the first one, the end of a resumed run and
how several workers load a checkpoint, it does nothing more for a model without norms of this
plugin. All workers of a run call these functions, so a wrapper may wait for the other workers. The
functions are those of fairseq 0.12.2, as in fairseq-fixed 0.12.3.1.

fairseq.data.token_block_dataset.TokenBlockDataset.__init__
    why: one sentence a block, as with `--sample-break-mode eos` and in whatever is scored or
        continued by a language model, needs `numpy.compat.long`, which numpy 2 does not have
    test: tests/models/test_language_model.py
fairseq.tasks.fairseq_task.FairseqTask.train_step
    why: norms with statistics of gradients need the scale of the loss and the number of updates,
        and must ignore dummy batches, which a worker without data computes to keep step
    test: tests/models/test_patches.py
fairseq.trainer.Trainer.__init__
    why: wraps the `train_step` of the run's task in the same way: that of `translation_lev`,
        `online_backtranslation` and others does not call `FairseqTask.train_step`; and makes the
        recorder of `--norm-record`
    test: tests/models/test_patches.py
fairseq.trainer.Trainer.train_step
    why: `--norm-record` looks at the norms in some updates
    test: tests/models/test_recording.py
fairseq.trainer.Trainer.load_checkpoint
    why: a run must not continue from a checkpoint that was trained with other norms; a run that
        has ended must train no more, and `--patience` must count on; and each of several workers
        must read the checkpoint itself, since torch's safe loader refuses what fairseq would send
    test: tests/models/test_resuming.py
fairseq.trainer.Trainer.save_checkpoint
    why: what `--patience` has counted is stored for a run that is resumed
    test: tests/models/test_run_end.py
fairseq.trainer.Trainer.begin_valid_epoch
    why: running statistics are averaged over the workers before a validation
    test: tests/models/test_two_workers.py
fairseq.checkpoint_utils.save_checkpoint
    why: running statistics are averaged over the workers before a checkpoint is saved
    test: tests/models/test_two_workers.py
fairseq.models.ema.ema.EMA.__init__
    why: `--store-ema` must copy counters, not average them
    test: tests/models/test_fairseq_features.py
fairseq.checkpoint_utils.load_checkpoint_to_cpu
    why: stored settings that fairseq evaluates must not run as code
    test: tests/checkpoints/test_unsafe_checkpoints.py
fairseq.options.parse_args_and_arch
    why: adds `--fold-norms` to the commands that load models
    test: tests/models/test_fold_norms_flag.py
fairseq.checkpoint_utils.load_model_ensemble_and_task
    why: folds the norms of the models that it has loaded
    test: tests/models/test_fold_norms_flag.py
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import TokenBlockDataset
from fairseq.file_io import PathManager
from fairseq.models.ema.ema import EMA
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor, nn

from norm_plugin.models.folding import fold_and_log
from norm_plugin.models.layers import ignoring_every_position
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.recording import make_recorder
from norm_plugin.models.resuming import check_resuming, reading_on_every_worker
from norm_plugin.models.run_end import KEY, patience_count, resume
from norm_plugin.models.sites import sides_of
from norm_plugin.models.stored_settings import allow_stored_flags, check_settings, plain
from norm_plugin.norms.base.statistics import BatchStatisticsNorm, average_running_statistics

Function = Callable[..., Any]
Around = Callable[[Function], Function]
MARK = "wrapped_by_the_norms"
PATCHES: dict[str, tuple[Any, str, Around]] = {}
"""By the full name of the function: its owner, its name there, and what is put around it."""


def patches(owner: Any, name: str) -> Callable[[Around], Around]:
    """Decorator: what it decorates makes a wrapper of ``owner.name``, a function of fairseq."""
    module = getattr(owner, "__module__", None)
    path = f"{module}.{owner.__qualname__}" if module else owner.__name__

    def register(around: Around) -> Around:
        PATCHES[f"{path}.{name}"] = (owner, name, around)
        return around

    return register


def wrap_once(owner: Any, name: str, around: Around) -> None:
    """Put ``around(function)`` in the place of ``owner.name``, once a process."""
    function = getattr(owner, name)
    if not hasattr(function, MARK):
        wrapper = around(function)
        setattr(wrapper, MARK, True)
        setattr(owner, name, wrapper)


def install() -> None:
    """Wrap fairseq's functions, once a process, and let torch's safe loader read its checkpoints.

    torch 2.6 and later load with ``weights_only=True``, and fairseq stores the flags of a command
    line as a Namespace. Allowing that one class keeps the safe loader on.
    """
    allow_stored_flags()
    for owner, name, around in PATCHES.values():
        wrap_once(owner, name, around)


@contextlib.contextmanager
def numpy_compat() -> Iterator[None]:
    """Within this context numpy has ``compat.long``, which numpy 2 no longer has."""
    names = vars(np)
    if "compat" in names:
        yield
        return
    names["compat"] = SimpleNamespace(long=np.int64)
    try:
        yield
    finally:
        del names["compat"]


@patches(TokenBlockDataset, "__init__")
def around_token_blocks(init: Function) -> Function:
    """Around ``TokenBlockDataset.__init__``."""

    @functools.wraps(init)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        with numpy_compat():
            init(*args, **kwargs)

    return wrapper


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
        if isinstance(module, NormModel):
            module.set_num_updates(update_num)


TRAIN_STEP = ("sample", "model", "criterion", "optimizer", "update_num", "ignore_grad")
"""The arguments of ``FairseqTask.train_step``; the trainer gives them by name."""


@patches(FairseqTask, "train_step")
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


@patches(Trainer, "__init__")
def around_trainer_init(init: Function) -> Function:
    """Around ``Trainer.__init__``: the task's own ``train_step`` tells the norms too."""

    @functools.wraps(init)
    def wrapper(trainer: Any, cfg: Any, task: Any, *args: Any, **kwargs: Any) -> None:
        init(trainer, cfg, task, *args, **kwargs)
        # Where it is defined, so that no class holds a copy of what it inherits
        owner = next((cls for cls in type(task).__mro__ if "train_step" in vars(cls)), None)
        if owner is not None:
            wrap_once(owner, "train_step", around_train_step)
        trainer.norm_recorder = make_recorder(trainer)

    return wrapper


@patches(Trainer, "train_step")
def around_update(train_step: Function) -> Function:
    """Around ``Trainer.train_step``, which is one update."""

    @functools.wraps(train_step)
    def wrapper(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = trainer.norm_recorder
        if recorder is None:
            return train_step(trainer, *args, **kwargs)
        scale = loss_scale(trainer.optimizer, next(trainer.get_model().parameters()))
        with recorder.recording(trainer.criterion, trainer.get_num_updates, scale):
            return train_step(trainer, *args, **kwargs)

    return wrapper


@patches(Trainer, "load_checkpoint")
def around_load_checkpoint(load_checkpoint: Function) -> Function:
    """Around ``Trainer.load_checkpoint``: every worker reads it, and refuses one of other norms."""

    @functools.wraps(load_checkpoint)
    def wrapper(
        trainer: Any,
        filename: str,
        reset_optimizer: bool = False,
        *args: Any,
        reset_meters: bool = False,
        **kwargs: Any,
    ) -> Any:
        model = trainer.get_model()
        transformer = isinstance(model, (NormModel, TransformerModelBase, TransformerLanguageModel))
        if transformer and PathManager.isfile(filename):
            plan = model.cfg.plan if isinstance(model, NormModel) else None
            check_resuming(filename, trainer.cfg.model, reset_optimizer, sides_of(model), plan)
        kwargs["reset_meters"] = reset_meters
        with reading_on_every_worker(trainer):
            extra_state = load_checkpoint(trainer, filename, reset_optimizer, *args, **kwargs)
        if extra_state is not None:
            resume(trainer, extra_state, anew=reset_optimizer or reset_meters)
        return extra_state

    return wrapper


@patches(Trainer, "save_checkpoint")
def around_trainer_save(save_checkpoint: Function) -> Function:
    """Around ``Trainer.save_checkpoint``."""

    @functools.wraps(save_checkpoint)
    def wrapper(trainer: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        count = patience_count()
        more = {} if count is None else {KEY: count}
        return save_checkpoint(trainer, filename, {**extra_state, **more})

    return wrapper


@patches(Trainer, "begin_valid_epoch")
def around_begin_valid_epoch(begin_valid_epoch: Function) -> Function:
    """Around ``Trainer.begin_valid_epoch``."""

    @functools.wraps(begin_valid_epoch)
    def wrapper(trainer: Any, epoch: int) -> Any:
        average_running_statistics(trainer.get_model())
        return begin_valid_epoch(trainer, epoch)

    return wrapper


@patches(checkpoint_utils, "save_checkpoint")
def around_save_checkpoint(save_checkpoint: Function) -> Function:
    """Around ``checkpoint_utils.save_checkpoint``."""

    @functools.wraps(save_checkpoint)
    def wrapper(cfg: Any, trainer: Any, *args: Any) -> Any:
        average_running_statistics(trainer.get_model())
        return save_checkpoint(cfg, trainer, *args)

    return wrapper


@patches(EMA, "__init__")
def around_ema_init(init: Function) -> Function:
    """Around ``EMA.__init__``: counters are copied from the model, not averaged."""

    @functools.wraps(init)
    def wrapper(ema: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        init(ema, model, *args, **kwargs)
        counters = {name for name, value in model.named_buffers() if not value.is_floating_point()}
        ema.skip_keys = {*ema.skip_keys, *counters}

    return wrapper


@patches(checkpoint_utils, "load_checkpoint_to_cpu")
def around_read_checkpoint(load: Function) -> Function:
    """Around ``checkpoint_utils.load_checkpoint_to_cpu``."""

    @functools.wraps(load)
    def wrapper(path: str, *args: Any, **kwargs: Any) -> Any:
        state = load(path, *args, **kwargs)
        for name in ("cfg", "args"):
            check_settings(plain(state.get(name)), path)
        return state

    return wrapper


OVERRIDE = "fold_norms"
HELP = "fold norms with running statistics into the linear maps after them where possible"


@patches(options, "parse_args_and_arch")
def around_parse_args(parse_args: Function) -> Function:
    """Around ``options.parse_args_and_arch``."""

    @functools.wraps(parse_args)
    def wrapper(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        # the commands that load models to use them are those with --model-overrides
        evaluates = parser.get_default("model_overrides") is not None
        if evaluates and parser.get_default(OVERRIDE) is None:
            parser.add_argument("--fold-norms", action="store_true", help=HELP)
        parsed = parse_args(parser, *args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, OVERRIDE, False):
            given = ast.literal_eval(getattr(namespace, "model_overrides", "{}"))
            namespace.model_overrides = repr({**given, OVERRIDE: True})
        return parsed

    return wrapper


@patches(checkpoint_utils, "load_model_ensemble_and_task")
def around_load_models(load: Function) -> Function:
    """Around ``checkpoint_utils.load_model_ensemble_and_task``."""

    @functools.wraps(load)
    def wrapper(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        overrides = dict(arg_overrides or {})
        fold = overrides.pop(OVERRIDE, False)
        models, cfg, task = load(filenames, overrides if fold else arg_overrides, *args, **kwargs)
        if fold:
            for filename, model in zip(filenames, models):
                fold_and_log(filename, model)
        return models, cfg, task

    return wrapper
