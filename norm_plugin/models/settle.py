"""Turn the settings of a model into its plan.

The settings are fairseq's flat names and ours: those of a command line, of the ``model`` node of a
YAML file, or of a checkpoint. Settings without any of ours mean LayerNorm at fairseq's sites.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_plugin.declarations import flags
from norm_plugin.declarations.flags import flag_of, norm_type_field, option_field
from norm_plugin.declarations.option import OptionValue
from norm_plugin.kernels import KERNELS
from norm_plugin.models.embeddings import FIXNORM, check_embedding
from norm_plugin.models.initialization import default_init, initializations
from norm_plugin.models.plan import (
    ALL_SITES,
    IDENTITY,
    LAYERNORM,
    LayerPlan,
    Plan,
    RecordSettings,
    SiteChoice,
)
from norm_plugin.models.sites import (
    EMBEDDINGS,
    PROJECTIONS,
    SIDES,
    Site,
    layer_places,
    layer_sites,
    normalizes_before,
    sites_outside_layers,
)
from norm_plugin.norms import NORM_TYPES, declared_options, norm_spec
from norm_plugin.placements import FINAL, PLACEMENTS, placement_class

WARMUP = option_field("warmup_updates")
ON_OFF = ("on", "off")


def settle(args: Any, sides: Sequence[str] = SIDES, *, complete: bool = False) -> Plan:
    """Return the plan of a model with these settings; only this function decides on norms.

    Args:
        args: the Namespace of a command line, which also has the scheduler's flags; the ``model``
            node of a YAML file, whose root has the node ``lr_scheduler``; or a mapping.
        sides: the stacks that the model has.
        complete: if a chosen norm has a warm-up whose length is not given, take the length of the
            learning rate's warm-up, and write it into ``args``. Otherwise the norm's default holds.

    Raises:
        ValueError: an unknown norm, placement or value of a flag; a flag of a site that the model
            lacks; an option that no chosen norm has, or a value that is not allowed; with
            ``complete``, a learning rate without warm-up.
    """
    settings = as_namespace(args)
    choices = {
        key: chosen(settings, key) or choice.default for key, choice in flags.CHOICES.items()
    }
    placement = chosen_placement(settings, sides)
    layers = {side: _layer_plans(settings, side, placement[side], sides) for side in sides}
    outside = {side: sites_outside_layers(settings, side, placement[side]) for side in sides}
    norms = {
        site: norm_type_of(settings, site, sides)
        for side in sides
        for site in chain(*(layer.sites.values() for layer in layers[side]), outside[side])
    }
    _check_site_flags(settings, norms, sides)
    for field in unused_norm_flags(settings, norms, sides):
        raise ValueError(
            f"{flag_of(field)} {getattr(settings, field)}: no site would have this norm, since the "
            "placement has no site for it or more specific flags choose the norms; drop it"
        )
    _check_norms(norms, placement)
    _check_options(settings, set(norms.values()))
    check_embedding(settings, str(choices[flags.EMBEDDING]))
    if complete and _lacks_warmup(settings, norms.values()):
        settings.norm_warmup_updates = args.norm_warmup_updates = _learning_rate_warmup(args)
    return Plan(
        placement=placement,
        layers=layers,
        outside_layers=outside,
        sites=tuple(
            SiteChoice(site, name, _options(settings, site, name)) for site, name in norms.items()
        ),
        initialization=_initialization(chosen(settings, flags.INIT), placement),
        kernels=str(choices[flags.KERNELS_CHOICE]),
        nan_check=choices[flags.NAN_CHECK] == "on",
        allow_mismatch=choices[flags.ALLOW_MISMATCH] == "on",
        record=_record_settings(settings, norms),
        ghost_batch_tokens=_ghost_batch_tokens(settings, set(norms.values())),
        embedding=str(choices[flags.EMBEDDING]),
        qkv_scope=str(choices[flags.QKV_SCOPE]),
    )


def as_namespace(args: Any) -> argparse.Namespace:
    """Return a copy of the settings as attributes, faster to read than an omegaconf node."""
    if OmegaConf.is_config(args):
        args = OmegaConf.to_container(args, resolve=True)
    return argparse.Namespace(**(args if isinstance(args, Mapping) else vars(args)))


# ---- sites ----------------------------------------------------------------------------------


def _layer_plans(
    settings: object, side: str, placement: str, sides: Sequence[str]
) -> list[LayerPlan]:
    """Return the layers of a stack, from bottom to top."""
    given = [f for f in PROJECTIONS if getattr(settings, norm_type_field(f), None) is not None]
    plans = []
    for place in layer_places(settings, side, sides):
        cls = placement_class(placement).at(place)
        plans.append(LayerPlan(place, cls, layer_sites(place, cls, given)))
    return plans


# ---- values of flags, and the placement ----------------------------------------------------


def choices_of(key: str) -> list[str]:
    """Return the values of a flag of ``flags.CHOICES``; placements of a user extend them."""
    choices = {
        **dict.fromkeys((flags.PLACEMENT, *flags.PLACEMENT_OF.values()), PLACEMENTS),
        flags.INIT: initializations(),
        flags.EMBEDDING: (flags.PLAIN, FIXNORM),
        flags.QKV_SCOPE: (flags.HEAD, flags.FULL),
        flags.NAN_CHECK: ON_OFF,
        flags.KERNELS_CHOICE: KERNELS,
        flags.ALLOW_MISMATCH: ON_OFF,
    }
    return list(choices[key])


def chosen(settings: object, key: str) -> str | None:
    """Return the value given for a flag, or None; ValueError for an unknown one (from YAML)."""
    value = getattr(settings, key, None)
    if isinstance(value, bool):  # YAML reads on and off as booleans
        value = "on" if value else "off"
    choices = choices_of(key)
    if value is not None and value not in choices:
        raise ValueError(f"{key} is {value!r}; choose from {', '.join(choices)}")
    return None if value is None else str(value)


def _given_placement(settings: object, side: str) -> str | None:
    return chosen(settings, flags.PLACEMENT_OF[side]) or chosen(settings, flags.PLACEMENT)


def chosen_placement(settings: object, sides: Sequence[str] = SIDES) -> dict[str, str]:
    """Return each side's placement: by its flag, by ``--norm-placement``, or by fairseq's flag.

    Raises:
        ValueError: an unknown placement, or a placement for a stack that the model lacks.
    """
    for side, key in flags.PLACEMENT_OF.items():
        if side not in sides and chosen(settings, key) is not None:
            raise ValueError(f"{flag_of(key)} is given, but this model has no {side}: drop it")
    # vars, not getattr: a user's placement may inherit from one that fairseq has
    by_flag = {vars(cls).get("normalize_before"): name for name, cls in PLACEMENTS.items()}
    return {
        side: _given_placement(settings, side)
        or by_flag[bool(getattr(settings, f"{side}_normalize_before", 0))]
        for side in sides
    }


def apply_placement(
    settings: object, arch_placement: str = "", sides: Sequence[str] = SIDES
) -> None:
    """Set ``norm_placement`` and each ``normalize_before`` by the flag or the architecture's name.

    Call it before fairseq's function of the architecture fills in what was not given.

    Raises:
        ValueError: the flags contradict each other or the architecture.
    """
    for side in sides:
        given = _given_placement(settings, side)
        if given and arch_placement and given != arch_placement:
            raise ValueError(
                f"placement {given} of the {side} contradicts the architecture, which is "
                f"{arch_placement}-norm: drop one of them"
            )
        if placement := given or arch_placement:
            key = f"{side}_normalize_before"
            # not from the placements of the layers: their number is not known yet
            place = layer_places(settings, side, sides)[0]
            before = normalizes_before(placement_class(placement), place.branches)
            stock = getattr(settings, key, None)
            if stock is not None and stock != before:
                raise ValueError(
                    f"{key} is {stock}, which contradicts {placement}-norm: drop {flag_of(key)} "
                    "or the placement"
                )
            setattr(settings, key, before)
    if arch_placement:
        setattr(settings, flags.PLACEMENT, arch_placement)


# ---- norms and their options ----------------------------------------------------------------


def norm_type_of(settings: object, site: Site, sides: Sequence[str] = SIDES) -> str:
    """Return the norm at ``site``: by the site's flag, else its side's, else by ``--norm-type``.

    If ``--norm-type`` is a norm with batch statistics, a decoder after an encoder keeps LayerNorm,
    as in the PowerNorm paper, since each position would see its future. In a model with a decoder
    alone, all sites have the norm, or the flag would do nothing. Queries, keys and values, which
    some placements normalize, keep LayerNorm too.
    """
    for flag in (site.flag, site.side):
        given = getattr(settings, norm_type_field(flag), None)
        if given is None:
            continue
        spec = norm_spec(str(given))
        if not (site.in_attention and spec.batch_statistics):
            return spec.name
        if flag == site.flag:
            raise ValueError(
                f"--norm-type-{flag} is {given!r}, which mixes positions; queries, keys and values "
                "are normalized position by position: choose a norm over channels"
            )
    everywhere = norm_spec(str(getattr(settings, "norm_type", None) or LAYERNORM))
    apart = site.in_attention or (site.side == "decoder" and "encoder" in sides)
    return LAYERNORM if apart and everywhere.batch_statistics else everywhere.name


def _check_site_flags(settings: object, sites: Iterable[Site], sides: Sequence[str]) -> None:
    """Raise ValueError for a flag of a site that the model does not have."""
    present = {*(site.flag for site in sites), *sides}
    for flag, meaning in flags.SITE_FLAGS.items():
        given = getattr(settings, norm_type_field(flag), None)
        if given is not None and flag not in present:
            raise ValueError(
                f"--norm-type-{flag} {given}: this model has no such site; its sites are "
                f"{', '.join(sorted(present))} ({meaning})"
            )


def unused_norm_flags(
    settings: object, norms: Mapping[Site, str], sides: Sequence[str]
) -> list[str]:
    """Return the keys of flags for all sites, or for a side, whose norm no site has."""
    within = {"norm_type": sides} | {norm_type_field(side): [side] for side in sides}
    return [
        field
        for field, where in within.items()
        if getattr(settings, field, None)
        not in (None, LAYERNORM, *(norm for site, norm in norms.items() if site.side in where))
    ]


def _check_options(settings: object, norms: set[str]) -> None:
    """Raise ValueError for an option that no chosen norm has."""
    names = ", ".join(norm for norm in NORM_TYPES if norm in norms)
    for name, owners in declared_options().items():
        with_option = [norm for norm, _ in owners]
        given = getattr(settings, option_field(name), None)
        if given is not None and norms.isdisjoint(with_option):
            raise ValueError(
                f"{flag_of(option_field(name))} is an option of {', '.join(with_option)}, but "
                f"{f'the chosen norms are {names}' if norms else 'this placement has no norm'}: "
                "drop it, or choose such a norm"
            )


def _check_norms(norms: Mapping[Site, str], placement: Mapping[str, str]) -> None:
    """Raise ValueError for a norm that the placement of its side cannot train with."""
    for site, norm in norms.items():
        reason = placement_class(placement[site.side]).needs_bounded_norms
        in_branch = not (site.branch == EMBEDDINGS or site.in_attention)
        if reason and in_branch and not norm_spec(norm).cls.bounded:
            raise ValueError(
                f"{site.name} is {norm}, which does not bound its output, with placement "
                f"{placement[site.side]}: {reason}. Choose another norm, or another placement"
            )


def _options(settings: object, site: Site, name: str) -> dict[str, OptionValue]:
    """Return the given options of the norm at a site, and those that it has in a Transformer."""
    spec = norm_spec(name)
    options = {option.name: option for option in spec.options}
    given = {key: getattr(settings, option_field(key), None) for key in options}
    given = {key: options[key].parse(value) for key, value in given.items() if value is not None}
    heads = getattr(settings, f"{site.side}_attention_heads", 1)
    cls, after_encoder = spec.class_of(given), site == Site("encoder", FINAL)
    implied = cls.transformer_options(given, heads, after_encoder)
    return {key: options[key].parse(value) for key, value in implied.items()}


# ---- what else the flags choose -------------------------------------------------------------


def _initialization(init: str | None, placement: Mapping[str, str]) -> dict[str, str]:
    """Return each side's initialization: ``init`` if given, else that of its placement."""
    by_side = {side: init or default_init(name) for side, name in placement.items()}
    for side, name in placement.items():
        if reason := placement_class(name).refuses(by_side[side]):
            raise ValueError(
                f"{flag_of(flags.INIT)} {by_side[side]} is undefined with placement {name} of the "
                f"{side}: {reason}; choose another one"
            )
    return by_side


def _ghost_batch_tokens(settings: object, norms: Iterable[str]) -> int | None:
    """Return the number of tokens per batch statistic; None for those of the batch."""
    given = getattr(settings, flags.GHOST_BATCH_TOKENS, None)
    if given is None:
        return None
    flag = flag_of(flags.GHOST_BATCH_TOKENS)
    if int(given) < 1:
        raise ValueError(f"{flag} is {given}; it must be 1 or more")
    if not any(norm_spec(name).batch_statistics for name in norms):
        raise ValueError(
            f"{flag} {given}: none of the chosen norms, {', '.join(sorted(norms))}, has batch "
            "statistics; drop it, or choose such a norm"
        )
    if getattr(settings, option_field("sync"), None) in ("on", True):
        raise ValueError(
            f"{flag} {given} contradicts --norm-sync on: workers have different numbers of groups, "
            "so their statistics cannot be synchronized; drop one of them"
        )
    return int(given)


def _record_settings(settings: object, sites: Iterable[Site]) -> RecordSettings | None:
    interval, given, file = (
        getattr(settings, key, None)
        for key in (flags.RECORD, flags.RECORD_SITES, flags.RECORD_FILE)
    )
    if interval is None:
        for key, value in ((flags.RECORD_SITES, given), (flags.RECORD_FILE, file)):
            if value is not None:
                raise ValueError(f"{flag_of(key)} {value} needs {flag_of(flags.RECORD)} EVERY")
        return None
    if int(interval) < 1:
        raise ValueError(f"{flag_of(flags.RECORD)} is {interval}; it must be 1 or more, as in 100")
    names = tuple(name.strip() for name in str(given or ALL_SITES).split(","))
    present = {ALL_SITES, *SIDES, *(site.flag for site in sites)}
    for name in names:
        if name not in present:
            why = "this model has no such site" if name in flags.SITE_FLAGS else "unknown site"
            raise ValueError(
                f"{flag_of(flags.RECORD_SITES)} {name}: {why}; choose from "
                f"{', '.join(sorted(present))}, separated by commas"
            )
    return RecordSettings(int(interval), names, file)


# ---- settings that follow from others -------------------------------------------------------


def _lacks_warmup(settings: object, norms: Iterable[str]) -> bool:
    """Return whether one of ``norms`` has a warm-up whose length is not given."""
    if getattr(settings, WARMUP, None) is not None:
        return False
    return any(norm_spec(name).has_option("warmup_updates") for name in norms)


def _learning_rate_warmup(args: Any) -> int:
    """Return the number of updates of the run's learning-rate warm-up.

    Raises:
        ValueError: its scheduler has no warm-up.
    """
    updates = None
    if OmegaConf.is_config(args):
        probe = OmegaConf.create({WARMUP: "${lr_scheduler.warmup_updates}"}, parent=args)
        with contextlib.suppress(OmegaConfBaseException):
            updates = probe[WARMUP]
    else:
        updates = getattr(args, "warmup_updates", None)
    if updates is None:
        raise ValueError(
            "the learning-rate scheduler of this run has no warmup_updates for the norm to use: "
            f"give {flag_of(WARMUP)} (model.{WARMUP} in YAML), 0 for none"
        )
    return int(updates)


def store_folded(args: argparse.Namespace, plan: Plan) -> None:
    """Write the norms that remain after folding into ``args``, the stored settings of a run.

    Settings that a model with these norms would refuse are unset.

    Args:
        plan: the plan of the folded model.
    """
    norms = {choice.site: choice.norm for choice in plan.sites}
    for site, norm in norms.items():
        if norm == IDENTITY:
            setattr(args, norm_type_field(site.flag), IDENTITY)
    left = set(norms.values())
    for field in unused_norm_flags(args, norms, tuple(plan.placement)):
        setattr(args, field, LAYERNORM)
    for name, owners in declared_options().items():
        if not left.intersection(owner for owner, _ in owners):
            setattr(args, option_field(name), None)
    if not any(norm_spec(name).batch_statistics for name in left):
        setattr(args, flags.GHOST_BATCH_TOKENS, None)
