"""Every fairseq function that the plugin wraps, because fairseq has no hook for these moments.

Each function below replaces the fairseq function that its decorator names, gets it as its first
argument and calls it. Without norms of this plugin in the model it does nothing more, except for
the first three, the end of a resumed run, and how several workers load a checkpoint. All workers of
a run call these functions, so one may wait for the other workers. The functions are those of
fairseq 0.12.2, as in fairseq-fixed 0.12.3.1.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import checkpoint_utils, models, options
from fairseq.data import TokenBlockDataset
from fairseq.examples.truncated_bptt.truncated_bptt_lm_task import TruncatedBPTTLMTask
from fairseq.file_io import PathManager
from fairseq.models.ema.ema import EMA
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.nan_detector import NanDetector
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor, nn

from norm_plugin.models.folding import fold_and_log
from norm_plugin.models.layers import ignoring_every_position
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.other_norms import loading_other_norms, same_parameters
from norm_plugin.models.recording import make_recorder
from norm_plugin.models.resuming import (
    PATIENCE,
    TRAINING_STATE,
    check_resuming,
    patience_count,
    reading_on_every_worker,
    resume,
    stored_state,
)
from norm_plugin.models.safe_loading import OLD_KEYS, allow_stored_classes, checked, safe_loading
from norm_plugin.models.sites import sides_of
from norm_plugin.norms.base.statistics import (
    BatchStatisticsNorm,
    average_running_statistics,
)

logger = logging.getLogger(__name__)

Function = Callable[..., Any]
MARK = "wrapped_by_the_norms"


class Patch(NamedTuple):
    """One wrapped function.

    Attributes:
        owner: the module or class that has the function.
        around: the replacement, which gets the function as its first argument.
        test: the file of its test.
    """

    owner: Any
    name: str
    around: Function
    test: str

    @property
    def path(self) -> str:
        """The full name of the function."""
        module = getattr(self.owner, "__module__", None)
        owner = f"{module}.{self.owner.__qualname__}" if module else self.owner.__name__
        return f"{owner}.{self.name}"


PATCHES: list[Patch] = []


def wraps(owner: Any, name: str, test: str) -> Callable[[Function], Function]:
    """Decorator: replace ``owner.name`` by the decorated function, whose docstring says why."""

    def register(around: Function) -> Function:
        PATCHES.append(Patch(owner, name, around, test))
        return around

    return register


def wrap_once(owner: Any, name: str, around: Function) -> None:
    """Replace ``owner.name`` by ``around(function, ...)``, once per process."""
    function = getattr(owner, name)
    if hasattr(function, MARK):
        return

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(function, *args, **kwargs)

    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)


def install() -> None:
    """Wrap fairseq's functions, once per process, and allow its checkpoints in the safe loader."""
    allow_stored_classes()
    for patch in PATCHES:
        wrap_once(patch.owner, patch.name, patch.around)


# ---- training -------------------------------------------------------------------------------


@wraps(TokenBlockDataset, "__init__", "tests/models/test_language_model.py")
def around_token_blocks(init: Function, *args: Any, **kwargs: Any) -> None:
    """One sentence per block, as with `--sample-break-mode eos` and for text that a language
    model scores or continues, needs `numpy.compat.long`, which numpy 2 does not have."""
    stand_in = SimpleNamespace(long=np.int64)
    found = vars(np).setdefault("compat", stand_in)
    try:
        init(*args, **kwargs)
    finally:
        if found is stand_in:  # only if no other code replaced it meanwhile
            del vars(np)["compat"]


@wraps(TruncatedBPTTLMTask, "__init__", "tests/models/test_transformer_xl_commands.py")
def around_truncated_bptt(init: Function, task: Any, cfg: Any, **from_checkpoint: Any) -> None:
    """`from_pretrained` and other code that takes the task from a checkpoint passes an argument
    that says so, which this task does not accept."""
    init(task, cfg)


@wraps(models, "build_model", "tests/models/test_config.py")
def around_build_model(
    build: Function, cfg: Any, task: Any, from_checkpoint: bool = False
) -> nn.Module:
    """A model of fairseq must not be trained with settings of norms in YAML: it would ignore
    them, and the run would store them."""
    name = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    model = models.ARCH_MODEL_REGISTRY.get(name) or models.MODEL_REGISTRY.get(name)
    if not from_checkpoint and model is not None and model.__module__.startswith("fairseq."):
        given = vars(cfg) if isinstance(cfg, argparse.Namespace) else cfg
        ignored = [key for key in given if key.startswith("norm_") and given[key] is not None]
        if ignored:
            raise ValueError(
                f"model {name} of fairseq ignores {', '.join(ignored)}; choose a model of this "
                f"plugin, such as norm_{name}, or leave out the norm and the placement"
            )
    built: nn.Module = build(cfg, task, from_checkpoint)
    return built


def loss_scale(optimizer: Any, like: Tensor) -> float | Tensor:
    """Return the factor by which ``optimizer.backward`` multiplies the loss."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else scaler.scale(torch.ones((), device=like.device))


def set_scale_and_updates(model: nn.Module, optimizer: Any, update_num: int) -> None:
    """Set the loss scale of norms with batch statistics, and that a criterion sums losses.

    Set the number of updates of the model, as ``FairseqTask.train_step`` does; some tasks do not.
    """
    norms, models = norms_and_models(model)
    if norms:
        scale = loss_scale(optimizer, norms[0].weight)
        for norm in norms:
            # Not by nn.Module's own setter, which costs a GPU's host as much as a launch
            vars(norm).update(loss_scale=scale, loss_is_summed=True)
    for module in models:
        module.set_num_updates(update_num)


LISTED = "_norms_and_models"


def norms_and_models(model: nn.Module) -> tuple[list[BatchStatisticsNorm], list[NormModel]]:
    """Return the norms with batch statistics and the models in ``model``; listed once, since a walk
    costs a GPU's host time."""
    found: tuple[list[BatchStatisticsNorm], list[NormModel]] | None = vars(model).get(LISTED)
    if found is None:
        modules = list(model.modules())
        found = (
            [module for module in modules if isinstance(module, BatchStatisticsNorm)],
            [module for module in modules if isinstance(module, NormModel)],
        )
        vars(model)[LISTED] = found
    return found


@wraps(FairseqTask, "train_step", "tests/models/test_patches.py")
def around_train_step(
    train_step: Function,
    task: Any,
    sample: Any,
    model: nn.Module,
    criterion: Any,
    optimizer: Any,
    update_num: int,
    ignore_grad: bool = False,
    **more: Any,
) -> Any:
    """Norms with statistics of gradients need the loss scale and the number of updates, and must
    ignore the dummy batches that a worker without data computes to stay in step."""
    set_scale_and_updates(model, optimizer, update_num)
    with ignoring_every_position(model) if ignore_grad else contextlib.nullcontext():
        return train_step(
            task, sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **more
        )


@wraps(Trainer, "__init__", "tests/models/test_patches.py")
def around_trainer_init(
    init: Function, trainer: Any, cfg: Any, task: Any, *args: Any, **kwargs: Any
) -> None:
    """The `train_step` of the run's task is wrapped in the same way, because that of
    `translation_lev`, `online_backtranslation` and others does not call
    `FairseqTask.train_step`. The recorder of `--norm-record` is created here, too."""
    init(trainer, cfg, task, *args, **kwargs)
    # Patch the class that defines it, so that no subclass gets a copy of an inherited method
    owner = next((cls for cls in type(task).__mro__ if "train_step" in vars(cls)), None)
    if owner is not None:
        wrap_once(owner, "train_step", around_train_step)
    trainer.norm_recorder = make_recorder(trainer)


@wraps(Trainer, "train_step", "tests/models/test_recording.py")
def around_update(train_step: Function, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """`--norm-record` measures the norms in some updates."""
    recorder = trainer.norm_recorder
    if recorder is None:
        return train_step(trainer, *args, **kwargs)
    scale = loss_scale(trainer.optimizer, next(trainer.get_model().parameters()))
    with recorder.recording(trainer.criterion, trainer.get_num_updates, scale):
        return train_step(trainer, *args, **kwargs)


@wraps(NanDetector, "__init__", "tests/models/test_divergence.py")
def around_nan_detector(
    init: Function,
    detector: Any,
    model: nn.Module,
    forward: bool = True,
    backward: bool = True,
) -> None:
    """While fairseq repeats an update whose gradient was not finite, the inputs of the norms are
    checked, so that the error names the first norm that sees the fault. Its hooks on the backward
    pass fail at an encoder, whose output is a dict of lists."""
    models = [module for module in model.modules() if isinstance(module, NormModel)]
    init(detector, model, forward=forward, backward=backward and not models)
    for module in models:
        if module.nan_check is not None:
            detector.fhooks.extend(module.nan_check.attach(module))  # fairseq removes them


@wraps(Trainer, "begin_valid_epoch", "tests/models/test_two_workers.py")
def around_begin_valid_epoch(begin_valid_epoch: Function, trainer: Any, epoch: int) -> Any:
    """Running statistics are averaged over the workers before validation."""
    average_running_statistics(trainer.get_model())
    return begin_valid_epoch(trainer, epoch)


@wraps(EMA, "__init__", "tests/models/test_fairseq_features.py")
def around_ema_init(init: Function, ema: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`--store-ema` must copy counters, not average them."""
    init(ema, model, *args, **kwargs)
    counters = {name for name, value in model.named_buffers() if not value.is_floating_point()}
    ema.skip_keys = {*ema.skip_keys, *counters}


@wraps(EMA, "restore", "tests/models/test_fairseq_features.py")
def around_ema_restore(
    restore: Function, ema: Any, state_dict: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """`--store-ema` leaves out the version of each stack, and a stack without one drops its final
    norm, as checkpoints of 2018 had none."""
    if isinstance(ema.model, NormModel):
        buffers = ema.model.named_buffers()
        versions = {name: value for name, value in buffers if name.endswith(".version")}
        state_dict = {**state_dict, **versions}
    restore(ema, state_dict, *args, **kwargs)


# ---- checkpoints ----------------------------------------------------------------------------


@wraps(checkpoint_utils, "save_checkpoint", "tests/models/test_two_workers.py")
def around_save_checkpoint(
    save_checkpoint: Function, cfg: Any, trainer: Any, epoch_itr: Any, *args: Any
) -> Any:
    """Before a checkpoint is saved, running statistics are averaged over the workers, and a
    memory of the training text is gathered from them."""
    model = trainer.get_model()
    average_running_statistics(model)
    within = isinstance(model, NormModel) and not epoch_itr.end_of_epoch()
    trainer.norm_training_state = model.training_state() if within else {}
    return save_checkpoint(cfg, trainer, epoch_itr, *args)


@wraps(Trainer, "save_checkpoint", "tests/models/test_run_end.py")
def around_trainer_save(
    save_checkpoint: Function, trainer: Any, filename: str, extra_state: dict[str, Any]
) -> Any:
    """The count of `--patience` and a memory of the training text are stored for resuming."""
    count = patience_count()
    more = {} if count is None else {PATIENCE: count}
    if state := getattr(trainer, "norm_training_state", {}):
        more[TRAINING_STATE] = state
    return save_checkpoint(trainer, filename, {**extra_state, **more})


@wraps(Trainer, "load_checkpoint", "tests/models/test_resuming.py")
def around_load_checkpoint(
    load_checkpoint: Function,
    trainer: Any,
    filename: str,
    reset_optimizer: bool = False,
    *args: Any,
    reset_meters: bool = False,
    **kwargs: Any,
) -> Any:
    """A run must not continue from a checkpoint that was trained with other norms; a finished
    run must not train on, and `--patience` must continue its count; and each of several workers
    must read the checkpoint itself, since torch's safe loader refuses what fairseq would send."""
    model = trainer.get_model()
    transformer = isinstance(model, (NormModel, TransformerModelBase, TransformerLanguageModel))
    loading: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if transformer and PathManager.isfile(filename):
        plan = model.cfg.plan if isinstance(model, NormModel) else None
        before = check_resuming(filename, trainer.cfg.model, reset_optimizer, sides_of(model), plan)
        if before is not None and plan is not None:
            loading = loading_other_norms(model, filename, before, plan)
            if not (
                reset_optimizer or same_parameters(stored_state(filename)["model"], model, before)
            ):
                logger.warning("the optimizer restarts, as its state is of other parameters")
                reset_optimizer = True
    kwargs["reset_meters"] = reset_meters
    with reading_on_every_worker(trainer), loading:
        extra_state = load_checkpoint(trainer, filename, reset_optimizer, *args, **kwargs)
    if extra_state is not None:
        if TRAINING_STATE in extra_state and isinstance(model, NormModel):
            model.load_training_state(extra_state[TRAINING_STATE])
        resume(trainer, extra_state, anew=reset_optimizer or reset_meters)
    return extra_state


@wraps(checkpoint_utils, "load_checkpoint_to_cpu", "tests/checkpoints/test_unsafe_checkpoints.py")
def around_read_checkpoint(
    load: Function,
    path: str,
    arg_overrides: dict[str, Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Stored settings that fairseq evaluates must not run as code; an error must name what the
    safe loader refuses; settings have their names of today; and the override `_name` must choose
    the model in older checkpoints too."""
    overrides = dict(arg_overrides or {})
    if "_name" in overrides:  # where only ``args`` are stored, arch names the model
        overrides.setdefault("arch", overrides["_name"])
    overrides |= {old: overrides[new] for old, new in OLD_KEYS.items() if new in overrides}
    with safe_loading(path):
        state = load(path, overrides, *args, **kwargs)
    return checked(state, path)


@wraps(checkpoint_utils, "load_ema_from_checkpoint", "tests/models/test_checkpoint_contents.py")
def around_read_ema(load: Function, fpath: str) -> Any:
    """The file of `--ema-seed-model`, which another function reads, needs the same checks."""
    with safe_loading(fpath):
        return load(fpath)


# ---- use of trained models ------------------------------------------------------------------

OVERRIDE = "fold_norms"
HELP = "fold norms with running statistics into the linear maps that follow, where possible"


def refuse_norm_flags(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> None:
    """Exit with a message if flags of norms are given with an architecture of fairseq."""
    known, unknown = parser.parse_known_args(argv)
    arch = getattr(known, "arch", None)
    flags = [word for word in unknown if word.startswith("--norm-")]
    model = models.ARCH_MODEL_REGISTRY.get(arch)
    if flags and model is not None and model.__module__.startswith("fairseq."):
        own = f"norm_{arch}"
        own = own if own in models.ARCH_MODEL_REGISTRY else "norm_transformer"
        parser.exit(
            2,
            f"error: --arch {arch} is fairseq's and has no {flags[0]}; choose an architecture of "
            f"norm_plugin, such as {own}\n",
        )


@wraps(options, "parse_args_and_arch", "tests/models/test_fold_norms_flag.py")
def around_parse_args(
    parse_args: Function, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any
) -> Any:
    """Flags of norms with an architecture of fairseq end in a line that says so, not in fairseq's
    usage of 177 lines; and the commands that load models get the flag `--fold-norms`."""
    refuse_norm_flags(parser, *args[:1])
    # commands that load models for use are those with --model-overrides
    evaluates = parser.get_default("model_overrides") is not None
    if evaluates and parser.get_default(OVERRIDE) is None:
        parser.add_argument("--fold-norms", action="store_true", help=HELP)
    parsed = parse_args(parser, *args, **kwargs)
    namespace = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(namespace, OVERRIDE, False):
        given = ast.literal_eval(getattr(namespace, "model_overrides", "{}"))
        namespace.model_overrides = repr({**given, OVERRIDE: True})
    return parsed


@wraps(checkpoint_utils, "load_model_ensemble_and_task", "tests/models/test_fold_norms_flag.py")
def around_load_models(
    load: Function,
    filenames: Sequence[str],
    arg_overrides: dict[str, Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The norms of the loaded models are folded if `--fold-norms` is given."""
    overrides = dict(arg_overrides or {})
    fold = overrides.pop(OVERRIDE, False)
    models, cfg, task = load(filenames, overrides if fold else arg_overrides, *args, **kwargs)
    if fold:
        for filename, model in zip(filenames, models):
            fold_and_log(filename, model)
    return models, cfg, task
