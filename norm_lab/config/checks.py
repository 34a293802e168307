"""Check the flags of a training before any file is written.

fairseq's parser reads them, and each norm of the model is built once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from norm_lab.metrics.flags import NAME_FLAGS, flag_of, last_values
from norm_plugin.io.command_line import CommandError

RUN_OPTIONS = {
    "common.seed": "seed=N",
    "model.norm_type": "norm=X",
    "common.user_dir": "--user-dir DIR",
    "checkpoint.save_dir": "--work DIR",
}
"""Settings that affect more than the training, and the option of the run that sets them."""


def check_extra_flags(flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise CommandError for a flag after ``--`` that an option of the run or an override sets."""
    refused = {}
    for override in overrides:
        group, _, key = override.lstrip("+~").partition("=")[0].rpartition(".")
        flag = NAME_FLAGS.get(group, "") if key == "_name" else flag_of(key)
        refused[flag] = f"{override} sets it in this run; give one of the two"
    for key, instead in RUN_OPTIONS.items():
        refused[flag_of(key.rpartition(".")[2])] = f"give {instead} before the --"
    refused |= dict.fromkeys(("-h", "--help"), "see `fairseq-train --help`")
    for argument in flags:
        flag = argument.partition("=")[0]
        if flag in refused:
            raise CommandError(f"{flag} cannot come after the --: {refused[flag]}")


def check_number_averaged(flags: Sequence[str], averaging: Sequence[str]) -> None:
    """Raise CommandError if a training saves fewer checkpoints than are averaged."""
    if not averaging:
        return
    names = ("max_epoch", "max_update", "save_interval_updates")
    epochs, updates, interval = last_values(flags, dict.fromkeys(names, 0))
    kind, count = averaging
    if kind == "--last-epochs":
        end, length, checkpoints = "--max-epoch", epochs, epochs
    else:
        end, length, checkpoints = "--max-update", updates, updates // max(interval, 1)
    if length > 0 and checkpoints < int(count):
        raise CommandError(
            f"{end} {length} saves {checkpoints} checkpoints, but {count} are averaged: train "
            f"longer, or keep fewer by {kind.replace('last', 'keep')}"
        )


@lru_cache
def check_training(flags: tuple[str, ...]) -> None:
    """Parse the flags of ``fairseq-train`` and build each norm of the model, without data.

    Raises:
        CommandError: a flag or choice is unknown, a value has the wrong type, no chosen norm has an
            option or the norm refuses its value, or flags contradict each other.
    """
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import norm_plugin.models  # noqa: F401  registers the architectures that the flags name

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # hide messages about its imports
    parser = options.get_training_parser()
    parser.error = _refuse
    try:
        args = options.parse_args_and_arch(parser, ["DATA", *flags])
        convert_namespace_to_omegaconf(args)
        _check_norms(args)
    except (ImportError, HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        raise CommandError(" ".join(str(error).split())) from error
    if args.lr_scheduler == "inverse_sqrt" and not args.warmup_updates:
        raise CommandError(
            "--lr-scheduler inverse_sqrt divides by --warmup-updates, which is 0: for no warm-up, "
            "give --warmup-init-lr the value of --lr, or choose --lr-scheduler fixed"
        )


def _refuse(message: str) -> NoReturn:
    raise CommandError(f"fairseq-train: {message}")


def _check_norms(args: Any) -> None:
    """Build the norm of every site, which checks its options."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.settle import settle

    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, NormModel):
        return  # a model of fairseq or of the user
    for choice in settle(args, model.sides).sites:
        choice.build(getattr(args, f"{choice.site.side}_embed_dim"))
