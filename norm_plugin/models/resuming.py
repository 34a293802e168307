"""A run goes on only with the norms that its checkpoint was trained with.

Many norms have the same parameters, so that a checkpoint of one loads into a model of another, and
fairseq's default --save-dir brings the two together. What is compared are the placement of each
stack, and the norm of each site with its options; a checkpoint of stock fairseq is one of
LayerNorm. What computes the norms (``--norm-kernels``) may change.
"""

from __future__ import annotations

import argparse
import logging
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from fairseq.file_io import PathManager

from norm_plugin.models.initialization import XAVIER
from norm_plugin.models.placement import PLACEMENTS, SIDES
from norm_plugin.models.sites import (
    LAYERNORM,
    Site,
    norm_type_of,
    present_sites,
    site_options,
)
from norm_plugin.models.stored_settings import check_settings
from norm_plugin.norms import norm_spec

logger = logging.getLogger(__name__)

ALLOW = "norm_allow_change"
ABSENT = "absent"
COUNTED_IN_UPDATES = "_updates"
"""Options that end so belong to the schedule of a run; one that begins anew has its own."""
STACKS = ("encoder", "decoder", "quant_noise")
"""fairseq's nested groups of settings, which a YAML file of a stock model may store as such."""


class NormChoices(NamedTuple):
    """What of a model's settings is about norms.

    Attributes:
        placement: by side, ``pre`` or ``post``.
        norms: by the name of the site, the norm.
        options: by the name of the site, every option of its norm.
        init: ``--norm-init``.
    """

    placement: dict[str, str]
    norms: dict[str, str]
    options: dict[str, dict[str, Any]]
    init: str


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


def choices_of(settings: Mapping[str, Any]) -> NormChoices:
    """What ``settings``, with flat names, say about norms; raises ValueError for a norm unknown."""
    cfg = argparse.Namespace(**{"norm_type": LAYERNORM, **settings})
    words = {before: word for word, before in PLACEMENTS.items()}
    before = {side: bool(getattr(cfg, f"{side}_normalize_before", False)) for side in SIDES}
    sites = present_sites(cfg)
    return NormChoices(
        {side: words[before[side]] for side in SIDES},
        {site.name: norm_type_of(cfg, site) for site in sites},
        {site.name: _all_options(cfg, site) for site in sites},
        getattr(cfg, "norm_init", None) or XAVIER,
    )


def _all_options(cfg: Any, site: Site) -> dict[str, Any]:
    """Every option of the norm at ``site``, those that were not given too, in their types."""
    known = {option.name: option for option in norm_spec(norm_type_of(cfg, site)).options}
    options = {name: option.default for name, option in known.items()}
    for name, value in site_options(cfg, site).items():
        options[name] = known[name].parse(value)
    return options


def differences(stored: NormChoices, asked: NormChoices, anew: bool = False) -> list[str]:
    """What two choices differ in, a text for each difference.

    Args:
        anew: training begins anew at update 0: its schedule and its initialization
            are its own.
    """
    found: dict[tuple[str, Any, Any], list[str]] = {}
    for side in SIDES:
        if stored.placement[side] != asked.placement[side]:
            key = ("placement", stored.placement[side], asked.placement[side])
            found.setdefault(key, []).append(side)
    for site in dict.fromkeys([*stored.norms, *asked.norms]):
        norms = stored.norms.get(site, ABSENT), asked.norms.get(site, ABSENT)
        if norms[0] != norms[1]:
            found.setdefault(("norm", *norms), []).append(site)
            continue
        for name, value in stored.options[site].items():
            other = asked.options[site][name]
            if value != other and not (anew and name.endswith(COUNTED_IN_UPDATES)):
                found.setdefault((f"{name} of {norms[0]}", value, other), []).append(site)
    if stored.init != asked.init and not anew:
        found[("norm_init", stored.init, asked.init)] = ["all layers"]
    return [
        f"{what} of {', '.join(places)}: stored {old}, asked {new}"
        for (what, old, new), places in found.items()
    ]


def stored_settings(path: str) -> dict[str, Any] | None:
    """The settings of the model in the checkpoint at ``path``; None where it holds none.

    Only the file's index is read where it is an archive, as every file since torch 1.6, so that
    each worker may do it.
    """
    local = PathManager.get_local_path(path)
    how = {"mmap": True} if zipfile.is_zipfile(local) else {}
    state = torch.load(local, map_location="cpu", weights_only=True, **how)
    for name in ("cfg", "args"):  # before anything is made of them
        check_settings(state.get(name), path)
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    return None if model is None else flat_settings(model)


def check_resuming(path: str, model: Any, anew: bool) -> None:
    """Refuse to train on from ``path`` with other norms, unless the flags say that it is meant.

    Args:
        path: a checkpoint.
        model: the settings of the run, ``cfg.model``.
        anew: training begins anew at update 0, as with ``--finetune-from-model``.

    Raises:
        ValueError: a norm, an option or the placement differs; it names both.
    """
    asked, stored = flat_settings(model), stored_settings(path)
    if stored is None:
        logger.warning("%s does not say with which norms it was trained", path)
        return
    if not (is_ours(asked) or is_ours(stored)):
        return
    found = differences(choices_of(stored), choices_of(asked), anew)
    if not found:
        return
    if asked.get(ALLOW) == "on":
        logger.warning("%s was trained with other norms, as allowed: %s", path, "; ".join(found))
        return
    raise ValueError(_refusal(path, found, is_ours(asked)))


def _refusal(path: str, found: Iterable[str], ours: bool) -> str:
    meant = (
        f"; if this is meant, --{ALLOW.replace('_', '-')} on (model.{ALLOW}=on in YAML)"
        if ours
        else ""
    )
    return (
        f"{path} was trained with other norms than this run asks for: {'; '.join(found)}. "
        f"Give the norms that it has, or another --save-dir{meant}"
    )
