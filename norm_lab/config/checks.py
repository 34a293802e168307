"""Check the flags of a training before any file is written.

fairseq's parser reads them, and each norm of the model is built once.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from norm_lab.config.extra_flags import refuse
from norm_lab.run.flags import Configuration, averaging_flags, flag_of
from norm_lab.run.record import placement_name
from norm_plugin.io.command_line import CommandError


def check_number_averaged(config: Configuration) -> None:
    """Raise CommandError if a training saves fewer checkpoints than are averaged."""
    averaging = averaging_flags(config)
    if not averaging:
        return
    optimization, kind, count = config["optimization"], *averaging
    if kind == "--last-epochs":
        name, length = "max_epoch", optimization.get("max_epoch") or 0
        checkpoints = length
    else:
        name, length = "max_update", optimization.get("max_update") or 0
        checkpoints = length // max(config["checkpoint"].get("save_interval_updates") or 0, 1)
    if length > 0 and checkpoints < int(count):
        raise CommandError(
            f"{flag_of(name)} {length} saves {checkpoints} checkpoints, but {count} are averaged: "
            f"train longer, or keep fewer by {kind.replace('last', 'keep')}"
        )


@lru_cache
def check_training(flags: tuple[str, ...]) -> str:
    """Parse the flags of ``fairseq-train`` and build each norm of the model, without data.

    Returns:
        The placement of the norms: ``pre``, or ``encoder pre, decoder post``.

    Raises:
        CommandError: a flag or choice is unknown, a value has the wrong type, no chosen norm has an
            option or the norm refuses its value, or flags contradict each other.
    """
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import norm_plugin.models  # noqa: F401  registers the architectures that the flags name

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # hide messages about its imports
    parser = options.get_training_parser()
    parser.error = refuse
    try:
        args = options.parse_args_and_arch(parser, ["DATA", *flags])
        convert_namespace_to_omegaconf(args)
        placement = _check_norms(args)
    except (ImportError, HydraException, OmegaConfBaseException, TypeError, ValueError) as error:
        raise CommandError(" ".join(str(error).split())) from error
    if args.lr_scheduler == "inverse_sqrt" and not args.warmup_updates:
        raise CommandError(
            "--lr-scheduler inverse_sqrt divides by --warmup-updates, which is 0: for no warm-up, "
            "give --warmup-init-lr the value of --lr, or choose --lr-scheduler fixed"
        )
    return placement


def _check_norms(args: Any) -> str:
    """Build the norm of every site, which checks its options; return the placement."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    from norm_plugin.models.norm_model import NormModel
    from norm_plugin.models.settle import settle

    model = ARCH_MODEL_REGISTRY.get(args.arch)
    if model is None or not issubclass(model, NormModel):  # a model of fairseq or of the user
        return "pre" if getattr(args, "encoder_normalize_before", False) else "post"
    plan = settle(args, model.sides)
    for choice in plan.sites:
        choice.build(getattr(args, f"{choice.site.side}_embed_dim"))
    return placement_name(plan.placement)
