"""The plan of a model: which norm with which options stands at which site, and the placement.

It is made of flat settings: those of a command line, of a YAML file or of a checkpoint. Whatever
builds, describes, compares or folds a model reads its plan.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from norm_plugin.models.embeddings import check_embedding
from norm_plugin.models.flags import (
    ALLOW,
    CHOICES,
    EMBEDDING,
    FUSED_DROPOUT,
    HEAD_WIDTH,
    INIT,
    KERNELS_CHOICE,
    NAN_CHECK,
    PLACEMENT,
    PLACEMENT_OF,
    RECORD,
    RECORD_FILE,
    RECORD_SITES,
    SITE_FLAGS,
    STAT_TOKENS,
    flag_of,
    norm_type_field,
    option_field,
)
from norm_plugin.models.initialization import of_placement
from norm_plugin.models.sites import (
    EMBEDDING_SITES,
    FINAL_SITES,
    PROJECTIONS,
    SIDES,
    Site,
    layer_places,
    normalizes_before,
    present_sites,
)
from norm_plugin.norms import NORM_TYPES, Norm, declared_options, norm_spec
from norm_plugin.norms.base.position_leak_check import check_declaration
from norm_plugin.norms.base.registry import OptionValue
from norm_plugin.placements import PLACEMENTS, LayerPlace, placement_class

LAYERNORM = "layernorm"
IDENTITY = "none"
WARMUP = option_field("warmup_updates")
ALL_SITES = "all"
RECORDS = "norm_record.jsonl.gz"
"""The name of the file of the records in the folder of the checkpoints, unless one is given."""


@dataclass(frozen=True)
class SiteChoice:
    """The norm at a site.

    Attributes:
        norm: its name.
        options: those given, and those that it takes in a Transformer, in their types.
    """

    site: Site
    norm: str
    options: Mapping[str, OptionValue]

    @property
    def all_options(self) -> dict[str, OptionValue]:
        """Every option of the norm, with the defaults of those not given."""
        defaults = {option.name: option.default for option in norm_spec(self.norm).options}
        return {**defaults, **self.options}

    def build(self, dim: int) -> Norm:
        """The norm over ``dim`` channels; ValueError if it mixes positions and does not say so."""
        spec, options = norm_spec(self.norm), dict(self.options)
        try:
            norm = spec.build(dim, **options)
        except ValueError as error:
            raise ValueError(f"{self.site.name}: {error}") from error
        check_declaration(spec, norm, options)
        return norm


@dataclass(frozen=True)
class RecordSettings:
    """What ``--norm-record`` records: how often, at which sites, into which file.

    Attributes:
        every: a record is made of update 1, 1 + every, 1 + 2 every and so on.
        sites: ``all``, sides and flags of sites.
        file: where to write; None: :data:`RECORDS` in the folder of the checkpoints.
    """

    every: int
    sites: tuple[str, ...] = (ALL_SITES,)
    file: str | None = None

    def takes(self, site: Site) -> bool:
        """Whether the norms at ``site`` are recorded."""
        return not {ALL_SITES, site.side, site.flag}.isdisjoint(self.sites)

    def path(self, save_dir: str) -> Path:
        """The file of a run with this ``--save-dir``."""
        return Path(self.file) if self.file else Path(save_dir) / RECORDS


@dataclass(frozen=True)
class Plan:
    """What a model's settings say about norms; see the flags of the same names.

    Attributes:
        placement, initialization: by side.
        layers: the places of the layers, from below, by side.
        sites: the norm of each site that the model has.
        record: what training records of the norms; None: nothing.
        stat_tokens: how many tokens batch statistics are taken over; None: those of the batch.
    """

    placement: Mapping[str, str]
    layers: Mapping[str, list[LayerPlace]]
    sites: tuple[SiteChoice, ...]
    initialization: Mapping[str, str]
    kernels: str
    fused_dropout: bool
    nan_check: bool
    allow_change: bool
    record: RecordSettings | None
    stat_tokens: int | None
    embedding: str
    head_width: str

    def at(self, site: Site) -> SiteChoice:
        """The norm at a site that the model has."""
        return next(choice for choice in self.sites if choice.site == site)

    def has(self, site: Site) -> bool:
        """Whether the model has a norm at ``site``."""
        return any(choice.site == site for choice in self.sites)

    def without(self, site: Site) -> Plan:
        """The plan with ``none`` at a site, as after folding."""
        gone = SiteChoice(site, IDENTITY, {})
        return replace(self, sites=tuple(gone if c.site == site else c for c in self.sites))

    def stored(self) -> dict[str, str]:
        """The settings that are stored with a run, by their keys."""
        values = {
            EMBEDDING: self.embedding,
            HEAD_WIDTH: self.head_width,
            KERNELS_CHOICE: self.kernels,
            FUSED_DROPOUT: "on" if self.fused_dropout else "off",
            NAN_CHECK: "on" if self.nan_check else "off",
            ALLOW: "on" if self.allow_change else "off",
        }
        placements, inits = set(self.placement.values()), set(self.initialization.values())
        if len(placements) == 1:
            values[PLACEMENT] = placements.pop()
        else:
            values |= {PLACEMENT_OF[side]: name for side, name in self.placement.items()}
        if len(inits) == 1:
            values[INIT] = inits.pop()
        for choice in self.sites:
            if choice.site not in EMBEDDING_SITES.values():  # one flag, and the two may differ
                values[norm_type_field(choice.site.flag)] = choice.norm
        return values


_plans: dict[str, Plan] = {}


def make_plan(settings: object, sides: Sequence[str] = SIDES) -> Plan:
    """The plan of a model with these settings; equal ones get the plan that was made before.

    fairseq completes the settings when it reads the flags and again when it builds the model.

    Args:
        settings: fairseq's flat names and ours: a Namespace, a mapping or the ``model`` node of a
            YAML file. One without ours has LayerNorm.
        sides: the stacks that the model has.

    Raises:
        ValueError: an unknown norm, placement or value of a flag; a flag of a site that the model
            lacks; an option that no chosen norm has, or a value that is not allowed.
    """
    if OmegaConf.is_config(settings):
        settings = OmegaConf.to_container(settings, resolve=True)
    if isinstance(settings, Mapping):
        settings = argparse.Namespace(**settings)
    given = {key: value for key, value in vars(settings).items() if value is not None}
    given.pop("_name", None)  # fairseq adds it
    key = repr((sorted(given.items()), sides, NORM_TYPES, list(PLACEMENTS)))
    if key not in _plans:
        _plans[key] = _make_plan(settings, sides)
    return _plans[key]


def _make_plan(settings: object, sides: Sequence[str]) -> Plan:
    choices = {key: chosen(settings, key) or choice.default for key, choice in CHOICES.items()}
    placement, norms = _sites_and_norms(settings, sides)
    _check_site_flags(settings, norms, sides)
    for field in _idle(settings, norms, sides):
        raise ValueError(
            f"{flag_of(field)} {getattr(settings, field)} would stand nowhere: the placement has "
            "no site for it, or more specific flags choose the norm of each; drop it"
        )
    _check_norms(norms, placement)
    _check_options(settings, set(norms.values()))
    check_embedding(settings, str(choices[EMBEDDING]))
    return Plan(
        placement=placement,
        layers={side: layer_places(settings, side, sides) for side in sides},
        sites=tuple(
            SiteChoice(site, name, _options(settings, site, name)) for site, name in norms.items()
        ),
        initialization=_initialization(chosen(settings, INIT), placement),
        kernels=str(choices[KERNELS_CHOICE]),
        fused_dropout=choices[FUSED_DROPOUT] == "on",
        nan_check=choices[NAN_CHECK] == "on",
        allow_change=choices[ALLOW] == "on",
        record=_record(settings, norms),
        stat_tokens=_stat_tokens(settings, set(norms.values())),
        embedding=str(choices[EMBEDDING]),
        head_width=str(choices[HEAD_WIDTH]),
    )


def _sites_and_norms(
    settings: object, sides: Sequence[str]
) -> tuple[dict[str, str], dict[Site, str]]:
    """The placement of each side, and the norm of each site."""
    placement = chosen_placement(settings, sides)
    sites = present_sites(settings, placement, sides)
    return placement, {site: norm_type_of(settings, site, sides) for site in sites}


# ---- placement ------------------------------------------------------------------------------


def chosen(settings: object, key: str) -> str | None:
    """The value given for a flag; ValueError for an unknown one, which only YAML can bring here."""
    value = getattr(settings, key, None)
    if isinstance(value, bool):  # YAML reads on and off as booleans
        value = "on" if value else "off"
    choices = list(CHOICES[key].choices())
    if value is not None and value not in choices:
        raise ValueError(f"{key} is {value!r}; choose from {', '.join(choices)}")
    return None if value is None else str(value)


def _placement_flag(settings: object, side: str) -> str | None:
    return chosen(settings, PLACEMENT_OF[side]) or chosen(settings, PLACEMENT)


def chosen_placement(settings: object, sides: Sequence[str] = SIDES) -> dict[str, str]:
    """The placement of each side: that of its flag, of ``--norm-placement``, or of fairseq's flag.

    ValueError for an unknown placement, or one for a stack that the model lacks.
    """
    for side, key in PLACEMENT_OF.items():
        if side not in sides and chosen(settings, key) is not None:
            raise ValueError(f"{flag_of(key)} is given, but this model has no {side}: drop it")
    # of the class itself: a user's own may inherit from one that fairseq has
    by_flag = {vars(cls).get("normalize_before"): name for name, cls in PLACEMENTS.items()}
    return {
        side: _placement_flag(settings, side)
        or by_flag[bool(getattr(settings, f"{side}_normalize_before", 0))]
        for side in sides
    }


def apply_placement(
    settings: object, arch_placement: str = "", sides: Sequence[str] = SIDES
) -> None:
    """Set ``norm_placement`` and each ``normalize_before`` by the flag or the architecture's name.

    Call it before the stock architecture function fills in what was not given. ValueError where
    the flags, or the flags and the architecture, contradict each other.
    """
    for side in sides:
        given = _placement_flag(settings, side)
        if given and arch_placement and given != arch_placement:
            raise ValueError(
                f"placement {given} of the {side} contradicts the architecture, which is "
                f"{arch_placement}-norm: drop one of them"
            )
        if placement := given or arch_placement:
            key = f"{side}_normalize_before"
            # Not by the classes of the layers: how many there are is not known yet
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
        setattr(settings, PLACEMENT, arch_placement)


# ---- norms and their options ----------------------------------------------------------------


def norm_type_of(settings: object, site: Site, sides: Sequence[str] = SIDES) -> str:
    """The norm at ``site``: its own flag, else its side's, else ``--norm-type``.

    A norm with batch statistics that only ``--norm-type`` asks for leaves the decoder on LayerNorm,
    as in the PowerNorm paper: there each position would see its future. In a model that is a
    decoder alone it stands at every site, or the flag would do nothing. Queries, keys and values,
    which some placements normalize, are left on LayerNorm too.
    """
    in_attention = site.flag in PROJECTIONS
    for flag in (site.flag, site.side):
        given = getattr(settings, norm_type_field(flag), None)
        if given is None:
            continue
        spec = norm_spec(str(given))
        if not (in_attention and spec.batch_statistics):
            return spec.name
        if flag == site.flag:
            raise ValueError(
                f"--norm-type-{flag} is {given!r}, which mixes positions; queries, keys and values "
                "are normalized position by position: choose a norm over channels"
            )
    everywhere = norm_spec(str(getattr(settings, "norm_type", None) or LAYERNORM))
    apart = in_attention or (site.side == "decoder" and "encoder" in sides)
    return LAYERNORM if apart and everywhere.batch_statistics else everywhere.name


def _check_site_flags(settings: object, sites: Iterable[Site], sides: Sequence[str]) -> None:
    """Refuse a flag for a site that the model does not have."""
    present = {*(site.flag for site in sites), *sides}
    for flag, meaning in SITE_FLAGS.items():
        given = getattr(settings, norm_type_field(flag), None)
        if given is not None and flag not in present:
            raise ValueError(
                f"--norm-type-{flag} {given}: this model has no such site; its sites are "
                f"{', '.join(sorted(present))} ({meaning})"
            )


def _idle(settings: object, norms: Mapping[Site, str], sides: Sequence[str]) -> list[str]:
    """The keys that ask for a norm everywhere, or on a side, where it stands nowhere."""
    within = {"norm_type": sides} | {norm_type_field(side): [side] for side in sides}
    return [
        field
        for field, where in within.items()
        if getattr(settings, field, None)
        not in (None, LAYERNORM, *(norm for site, norm in norms.items() if site.side in where))
    ]


def _check_options(settings: object, norms: set[str]) -> None:
    """Refuse an option that no chosen norm has."""
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
        in_branch = site not in EMBEDDING_SITES.values() and site.flag not in PROJECTIONS
        if reason and in_branch and not norm_spec(norm).cls.bounded:
            raise ValueError(
                f"{site.name} is {norm}, which does not bound its output, with placement "
                f"{placement[site.side]}: {reason}. Choose another norm, or another placement"
            )


def _options(settings: object, site: Site, name: str) -> dict[str, OptionValue]:
    """The options given for the norm at a site, and those that it takes in a Transformer."""
    spec = norm_spec(name)
    options = {option.name: option for option in spec.options}
    given = {key: getattr(settings, option_field(key), None) for key in options}
    given = {key: options[key].parse(value) for key, value in given.items() if value is not None}
    heads = getattr(settings, f"{site.side}_attention_heads", 1)
    implied = spec.cls.transformer_options(given, heads, site == FINAL_SITES["encoder"])
    return {key: options[key].parse(value) for key, value in implied.items()}


# ---- what else the flags choose -------------------------------------------------------------


def _initialization(init: str | None, placement: Mapping[str, str]) -> dict[str, str]:
    """The initialization of each side: ``init`` if given, else that of the side's placement."""
    by_side = {side: init or of_placement(name) for side, name in placement.items()}
    for side, name in placement.items():
        if reason := placement_class(name).refuses(by_side[side]):
            raise ValueError(
                f"{flag_of(INIT)} {by_side[side]} is undefined with placement {name} of the "
                f"{side}: {reason}; choose another one"
            )
    return by_side


def _stat_tokens(settings: object, norms: Iterable[str]) -> int | None:
    """How many tokens batch statistics are taken over; None: those of the batch."""
    given = getattr(settings, STAT_TOKENS, None)
    if given is None:
        return None
    flag = flag_of(STAT_TOKENS)
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


def _record(settings: object, sites: Iterable[Site]) -> RecordSettings | None:
    every, given, file = (
        getattr(settings, key, None) for key in (RECORD, RECORD_SITES, RECORD_FILE)
    )
    if every is None:
        for key, value in ((RECORD_SITES, given), (RECORD_FILE, file)):
            if value is not None:
                raise ValueError(f"{flag_of(key)} {value} needs {flag_of(RECORD)} EVERY")
        return None
    if int(every) < 1:
        raise ValueError(f"{flag_of(RECORD)} is {every}; it must be 1 or more, as in 100")
    names = tuple(name.strip() for name in str(given or ALL_SITES).split(","))
    present = {ALL_SITES, *SIDES, *(site.flag for site in sites)}
    for name in names:
        if name not in present:
            why = "this model has no such site" if name in SITE_FLAGS else "unknown site"
            raise ValueError(
                f"{flag_of(RECORD_SITES)} {name}: {why}; choose from {', '.join(sorted(present))}, "
                "separated by commas"
            )
    return RecordSettings(int(every), names, file)


# ---- settings that follow from others -------------------------------------------------------


def default_warmup(args: Any, sides: Sequence[str] = SIDES) -> None:
    """Set ``norm_warmup_updates`` if a chosen norm has a warm-up and its length was not given.

    Args:
        args: the Namespace of a command line, which holds the scheduler's flags too, or the
            ``model`` node of a YAML file, whose root has the node ``lr_scheduler``.
        sides: the stacks that the model has.

    Raises:
        ValueError: the learning-rate scheduler of the run has no warm-up to follow.
    """
    _, norms = _sites_and_norms(args, sides)
    warm_up = any(norm_spec(name).has_option("warmup_updates") for name in norms.values())
    if not warm_up or getattr(args, WARMUP, None) is not None:
        return
    updates = None
    if OmegaConf.is_config(args):
        probe = OmegaConf.create({WARMUP: "${lr_scheduler.warmup_updates}"}, parent=args)
        with contextlib.suppress(OmegaConfBaseException):
            updates = probe[WARMUP]
    else:
        updates = getattr(args, "warmup_updates", None)
    if updates is None:
        raise ValueError(
            f"the learning-rate scheduler of this run has no warmup_updates for the norm to use: "
            f"give {flag_of(WARMUP)} (model.{WARMUP} in YAML), 0 for none"
        )
    setattr(args, WARMUP, int(updates))


def store_folded(
    args: argparse.Namespace, sites: Iterable[Site], sides: Sequence[str] = SIDES
) -> None:
    """Write into ``args``, the stored settings of a run, that the norms of ``sites`` are gone.

    What a model with the remaining norms would refuse is unset.
    """
    for site in sites:
        setattr(args, norm_type_field(site.flag), IDENTITY)
    _, norms = _sites_and_norms(args, sides)
    left = set(norms.values())
    for field in _idle(args, norms, sides):
        setattr(args, field, LAYERNORM)
    for name, owners in declared_options().items():
        if not left.intersection(owner for owner, _ in owners):
            setattr(args, option_field(name), None)
    if not any(norm_spec(name).batch_statistics for name in left):
        setattr(args, STAT_TOKENS, None)
