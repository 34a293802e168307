"""Training continues from a checkpoint only with the norms that the checkpoint was trained with.

Many norms have the same parameters, so a checkpoint of one loads into a model of another without an
error, and two runs with fairseq's default ``--save-dir`` share their checkpoints. The plans are
compared: the placement of each stack, and the norm of each site with its options. A checkpoint of
stock fairseq has LayerNorm. ``--norm-kernels`` may change.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY

from norm_plugin.models.flags import ALLOW, EMBEDDING, INIT, STAT_TOKENS, flag_of
from norm_plugin.models.plan import Plan, make_plan
from norm_plugin.models.sites import SIDES
from norm_plugin.models.stored_settings import check_settings

logger = logging.getLogger(__name__)

ABSENT = "absent"
COUNTED_IN_UPDATES = "_updates"
"""Options whose names end like this belong to the schedule of a run. A new start has its own."""
STACKS = ("encoder", "decoder", "quant_noise")
"""fairseq's nested groups of settings, which a YAML file of a stock model may store as such."""


def is_ours(settings: Mapping[str, Any]) -> bool:
    """Whether the settings are those of a ``norm_transformer``."""
    return "norm_type" in settings


def flat_settings(model: Any) -> dict[str, Any]:
    """The settings of a model, a Namespace or a mapping, as fairseq's flat names."""
    given = dict(vars(model) if isinstance(model, argparse.Namespace) else model)
    for stack in STACKS:
        nested = given.pop(stack, None)
        if isinstance(nested, Mapping):
            given.update({f"{stack}_{name}": value for name, value in nested.items()})
    return given


def plan_of(settings: Mapping[str, Any], sides: Sequence[str] = SIDES) -> Plan:
    """The plan of a model with these flat settings; ValueError for one that no model can have."""
    return make_plan(argparse.Namespace(**settings), sides)


def differences(
    stored: Plan, asked: Plan, anew: bool = False, names: tuple[str, str] = ("stored", "asked")
) -> list[str]:
    """What differs between two plans, one text for each difference.

    Args:
        anew: training starts again at update 0, with its own schedule and initialization.
        names: what the texts call the two.
    """
    found: dict[tuple[str, Any, Any], list[str]] = {}
    for side, placement in stored.placement.items():
        if placement != asked.placement[side]:
            found.setdefault(("placement", placement, asked.placement[side]), []).append(side)
    olds, news = ({choice.site: choice for choice in plan.sites} for plan in (stored, asked))
    for site in dict.fromkeys([*olds, *news]):
        old, new = olds.get(site), news.get(site)
        if old is None or new is None or old.norm != new.norm:
            norms = (old.norm if old else ABSENT, new.norm if new else ABSENT)
            found.setdefault(("norm", *norms), []).append(site.name)
            continue
        for name, value in old.all_options.items():
            other = new.all_options[name]
            if value != other and not (anew and name.endswith(COUNTED_IN_UPDATES)):
                found.setdefault((f"{name} of {old.norm}", value, other), []).append(site.name)
    if stored.stat_tokens != asked.stat_tokens:
        found[(STAT_TOKENS, stored.stat_tokens, asked.stat_tokens)] = ["all sites"]
    if stored.embedding != asked.embedding:
        found[(EMBEDDING, stored.embedding, asked.embedding)] = ["the words"]
    for side, word in stored.initialization.items():
        if word != asked.initialization[side] and not anew:
            found.setdefault((INIT, word, asked.initialization[side]), []).append(f"{side} layers")
    return [
        f"{what} of {', '.join(places)}: {names[0]} {old}, {names[1]} {new}"
        for (what, old, new), places in found.items()
    ]


def stored_settings(path: str) -> dict[str, Any] | None:
    """The settings of the model in the checkpoint at ``path``; None where it holds none.

    Every worker reads it: of an archive, as torch writes since 1.6, only the settings are read.
    """
    local = PathManager.get_local_path(path)
    how = {"mmap": True} if zipfile.is_zipfile(local) else {}
    state = torch.load(local, map_location="cpu", weights_only=True, **how)
    for name in ("cfg", "args"):  # before anything is made of them
        check_settings(state.get(name), path)
    return settings_of(state)


def settings_of(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The flat settings of the model in the content of a checkpoint; None where it holds none."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    return None if model is None else flat_settings(model)


def stacks_of(settings: Mapping[str, Any], otherwise: Sequence[str] = SIDES) -> Sequence[str]:
    """The stacks of the model with these flat settings; ``otherwise`` where it is not ours."""
    arch = settings.get("arch") or settings.get("_name")
    found: Sequence[str] = getattr(ARCH_MODEL_REGISTRY.get(arch), "sides", otherwise)
    return found


def check_resuming(path: str, model: Any, anew: bool, sides: Sequence[str] = SIDES) -> None:
    """Refuse to continue from ``path`` with other norms, unless ``--norm-allow-change`` is on.

    Args:
        path: a checkpoint.
        model: the settings of the run, ``cfg.model``.
        anew: training starts again at update 0, as with ``--finetune-from-model``.
        sides: the stacks that the model has.

    Raises:
        ValueError: a norm, an option or the placement differs; it names both. Or the checkpoint is
            of another kind of model.
    """
    asked, stored = flat_settings(model), stored_settings(path)
    if stored is None:
        logger.warning("%s does not say with which norms it was trained", path)
        return
    if not (is_ours(asked) or is_ours(stored)):
        return
    _check_kind(path, stored, sides)
    found = differences(plan_of(stored, sides), plan_of(asked, sides), anew)
    if not found:
        return
    if asked.get(ALLOW) == "on":
        logger.warning("%s was trained with other norms, as allowed: %s", path, "; ".join(found))
        return
    raise ValueError(_refusal(path, found, is_ours(asked)))


@contextlib.contextmanager
def reading_on_every_worker(trainer: Any) -> Iterator[None]:
    """Within it, each of several workers reads a checkpoint, as with
    ``--load-checkpoint-on-all-dp-ranks``.

    By default fairseq reads it on the first worker only and sends it to the others as a pickle that
    holds containers of OmegaConf. torch's safe loader refuses those. Their classes must not be
    allowed: unpickling sets any attribute of such a container, even in place of its methods, and
    then every checkpoint could do so.
    """
    settings = trainer.cfg.checkpoint
    before = settings.load_checkpoint_on_all_dp_ranks
    settings.load_checkpoint_on_all_dp_ranks = before or trainer.data_parallel_world_size > 1
    try:
        yield
    finally:
        settings.load_checkpoint_on_all_dp_ranks = before


def _check_kind(path: str, stored: Mapping[str, Any], sides: Sequence[str]) -> None:
    """Raise ValueError for a checkpoint of ours whose model has other stacks than this one."""
    theirs = stacks_of(stored, sides)
    if set(theirs) != set(sides):
        arch = stored.get("arch") or stored.get("_name")
        raise ValueError(
            f"{path} is a {arch}, which has {_listed(theirs)}, and this model has "
            f"{_listed(sides)}: give a checkpoint of the same kind of model"
        )


def _listed(sides: Iterable[str]) -> str:
    return " and ".join({"encoder": "an encoder", "decoder": "a decoder"}[side] for side in sides)


def _refusal(path: str, found: Iterable[str], ours: bool) -> str:
    meant = f"; if this is meant, {flag_of(ALLOW)} on (model.{ALLOW}=on in YAML)" if ours else ""
    return (
        f"{path} was trained with other norms than this run asks for: {'; '.join(found)}. "
        f"Give the norms that it has, or another --save-dir{meant}"
    )
