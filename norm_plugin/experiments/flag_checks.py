"""Check a whole command line of ``fairseq-train`` before anything is downloaded or computed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

KEPT = {
    "--user-dir": "give it as --user-dir DIR before the --, so that every stage has it",
    "--seed": "give it as --seed N before the --, as the run is named after it",
    "--norm-type": "give it as --norm-type X before the --, as the run is named after it",
    "--save-dir": "checkpoints belong to the run; choose where with --work before the --",
    "-h": "`fairseq-train --help` shows its flags",
    "--help": "`fairseq-train --help` shows its flags",
}
"""Flags of ``fairseq-train`` that the scripts set themselves, and how to set them instead."""


def refuse_kept(further: Sequence[str]) -> None:
    """Raise ValueError where the user's own flags hold one of ``KEPT``."""
    for word in further:
        flag = word.partition("=")[0]
        if flag in KEPT:
            raise ValueError(f"{flag} cannot come after the --: {KEPT[flag]}")


def check_training(flags: Sequence[str]) -> None:
    """Parse a command line of ``fairseq-train`` and build each norm of its plan, without data.

    Raises:
        ValueError: an unknown flag or choice, a value of the wrong type, an option that no chosen
            norm has or that its norm refuses, flags that contradict each other, a ``--user-dir``
            with the name of another package.
    """
    from fairseq import options

    import norm_plugin.models  # noqa: F401  registers the architectures that the flags name

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # of what it imports
    parser = options.get_training_parser()
    parser.error = _refuse
    try:
        args = options.parse_args_and_arch(parser, ["DATA", *flags])
    except ImportError as error:  # of the --user-dir
        raise ValueError(str(error)) from error
    settings = repr(sorted(item for item in vars(args).items() if not _differs_in_a_sweep(item[0])))
    if settings not in _ACCEPTED:
        _check_types(args)
        _ACCEPTED.add(settings)
    _check_norms(args)


_ACCEPTED: set[str] = set()
"""The settings that were found good: to look at them takes fairseq a good tenth of a second."""


def _differs_in_a_sweep(name: str) -> bool:
    """Seeds and what concerns norms, whose types argparse and the norms check."""
    return name == "seed" or name.startswith("norm_")


def _check_types(args: argparse.Namespace) -> None:
    """Raise ValueError where fairseq's typed configuration, or its schedule, refuses a value."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    try:
        convert_namespace_to_omegaconf(args)
    except (HydraException, OmegaConfBaseException, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    _check_schedule(args)


def check_number_averaged(flags: Sequence[str], averaging: Sequence[str]) -> None:
    """Raise ValueError where a training is too short for the checkpoints that are averaged."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--max-epoch", "--max-update", "--save-interval-updates"):
        parser.add_argument(flag, type=int, default=0)
    ends, _ = parser.parse_known_args(list(flags))
    kind, count = averaging
    if kind == "--last-epochs":
        flag, most = f"--max-epoch {ends.max_epoch}", ends.max_epoch
    else:
        flag = f"--max-update {ends.max_update}"
        most = ends.max_update // max(ends.save_interval_updates, 1)
    if 0 < most < int(count) or (most == 0 and kind != "--last-epochs" and ends.max_update > 0):
        keep = "--keep-last-epochs" if kind == "--last-epochs" else "--keep-interval-updates"
        raise ValueError(
            f"{flag} makes {most} checkpoints and {count} are averaged: train longer, or add "
            f"{keep} {max(most, 1)}"
        )


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"fairseq-train: {message}")


def _check_schedule(args: Any) -> None:
    """Refuse a schedule that fairseq cannot compute; it says so only after the data is prepared."""
    for flag, value, least in (
        ("--max-update", args.max_update, 0),
        ("--max-epoch", args.max_epoch, 0),
        ("--update-freq", min(args.update_freq), 1),
    ):
        if value < least:
            raise ValueError(f"{flag} is {value}; it must be at least {least}")
    if args.lr_scheduler == "inverse_sqrt" and not args.warmup_updates:
        raise ValueError(
            "--lr-scheduler inverse_sqrt divides by --warmup-updates, which is 0: for no warm-up "
            "give --warmup-init-lr the value of --lr, or choose --lr-scheduler fixed"
        )


def _check_norms(args: Any) -> None:
    """Build the norm of every site; a norm refuses options that it does not have."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.plan import IDENTITY, LAYERNORM, make_plan

    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, NormModel):
        return  # a model of fairseq's own, or of the user's
    sites = make_plan(args, model.sides).sites
    if not sites and args.norm_type not in (LAYERNORM, IDENTITY):
        raise ValueError(
            f"norm {args.norm_type}: no layer of this placement has a norm, so the run would not "
            f"have it either; give {IDENTITY}, or another placement"
        )
    for choice in sites:
        choice.build(getattr(args, f"{choice.site.side}_embed_dim"))
