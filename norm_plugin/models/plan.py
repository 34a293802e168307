"""The plan of a model: which norm with which options stands at which site, and the placement.

It is made of flat settings: those of a command line, of a YAML file or of a checkpoint. Whatever
builds, describes, compares or folds a model reads its plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from norm_plugin.models.embeddings import PLAIN, check_embedding
from norm_plugin.models.flags import (
    ALLOW,
    CHOICES,
    EMBEDDING,
    FUSED_DROPOUT,
    INIT,
    KERNELS_CHOICE,
    NAN_CHECK,
    PLACEMENT,
    PLACEMENT_OF,
    SITE_FLAGS,
    STAT_TOKENS,
    flag_of,
    norm_type_field,
    option_field,
)
from norm_plugin.models.initialization import of_placement
from norm_plugin.models.placement_choice import check_norms, chosen_placement, chosen_word
from norm_plugin.models.record_settings import RecordSettings, record_settings
from norm_plugin.models.sites import (
    EMBEDDING_SITES,
    FINAL_SITES,
    PROJECTIONS,
    SIDES,
    Site,
    present_sites,
)
from norm_plugin.models.stat_tokens import stat_tokens
from norm_plugin.norms import NORM_TYPES, Norm, NormSpec, declared_options, norm_spec
from norm_plugin.norms.base.mixing import check_declaration
from norm_plugin.norms.base.registry import OptionValue
from norm_plugin.placements import placement_class

LAYERNORM = "layernorm"
IDENTITY = "none"


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
class Plan:
    """What a model's settings say about norms.

    Attributes:
        placement: by side.
        sites: the norm of each site that the model has.
        initialization: by side, a word of ``--norm-init``.
        kernels: a word of ``--norm-kernels``.
        fused_dropout: whether a branch's dropout and residual sum are one pass.
        nan_check: whether training stops at a norm whose input is not finite.
        allow_change: whether training may continue from a checkpoint of another plan.
        record: what training records of the norms; None: nothing.
        stat_tokens: how many tokens batch statistics are taken over; None: those of the batch.
        embedding: a word of ``--norm-embedding``.
    """

    placement: Mapping[str, str]
    sites: tuple[SiteChoice, ...]
    initialization: Mapping[str, str]
    kernels: str
    fused_dropout: bool
    nan_check: bool
    allow_change: bool
    record: RecordSettings | None = None
    stat_tokens: int | None = None
    embedding: str = PLAIN

    @property
    def sides(self) -> tuple[str, ...]:
        """The stacks that the model has."""
        return tuple(self.placement)

    def at(self, site: Site) -> SiteChoice:
        """The norm at a site that the model has."""
        return next(choice for choice in self.sites if choice.site == site)

    def has(self, site: Site) -> bool:
        """Whether the model has a norm at ``site``."""
        return any(choice.site == site for choice in self.sites)

    def without(self, site: Site) -> Plan:
        """The same plan with ``none`` at a site, as after folding."""
        return replace(
            self,
            sites=tuple(
                SiteChoice(choice.site, IDENTITY, {}) if choice.site == site else choice
                for choice in self.sites
            ),
        )

    def stored(self) -> dict[str, str]:
        """The settings that are stored with a run, by their keys."""
        inits = set(self.initialization.values())
        given = {
            PLACEMENT: self.placement.values(),
            INIT: inits,
            EMBEDDING: [self.embedding],
            KERNELS_CHOICE: [self.kernels],
            FUSED_DROPOUT: ["on" if self.fused_dropout else "off"],
            NAN_CHECK: ["on" if self.nan_check else "off"],
            ALLOW: ["on" if self.allow_change else "off"],
        }
        values = {key: next(iter(words)) for key, words in given.items() if len(set(words)) == 1}
        if PLACEMENT not in values:
            values |= {PLACEMENT_OF[side]: word for side, word in self.placement.items()}
        for choice in self.sites:
            if choice.site not in EMBEDDING_SITES.values():  # one flag, and the two may differ
                values[norm_type_field(choice.site.flag)] = choice.norm
        return values


def make_plan(settings: object, sides: Sequence[str] = SIDES) -> Plan:
    """The plan of a model with these settings.

    Args:
        settings: fairseq's flat names and ours, as attributes; one without ours has LayerNorm.
        sides: the stacks that the model has.

    Raises:
        ValueError: an unknown norm, placement or word; a flag of a site that the model lacks; an
            option that no chosen norm has, or a value that is not allowed.
    """
    words = {key: chosen_word(settings, key) for key in CHOICES}
    placement = chosen_placement(settings, sides)
    sites = present_sites(settings, placement, sides)
    _check_site_flags(settings, sites, sides)
    norms = {site: norm_type_of(settings, site, sides) for site in sites}
    check_norms(norms, placement)
    _check_options(settings, set(norms.values()))
    embedding = words[EMBEDDING] or PLAIN
    check_embedding(settings, embedding)
    return Plan(
        placement,
        tuple(
            SiteChoice(site, name, _site_options(settings, site, name))
            for site, name in norms.items()
        ),
        chosen_initialization(words[INIT], placement),
        words[KERNELS_CHOICE] or str(CHOICES[KERNELS_CHOICE].default),
        words[FUSED_DROPOUT] == "on",
        words[NAN_CHECK] != "off",
        words[ALLOW] == "on",
        record_settings(settings, sites),
        stat_tokens(settings, set(norms.values())),
        embedding,
    )


def norm_type_of(settings: object, site: Site, sides: Sequence[str] = SIDES) -> str:
    """The norm at ``site``: its own flag, else its side's, else ``--norm-type``.

    A norm with batch statistics that only ``--norm-type`` asks for leaves the decoder on LayerNorm,
    as in the PowerNorm paper: there each position would see its future. In a model that is a
    decoder alone it stands at every site, or the flag would do nothing.
    """
    for flag in (site.flag, site.side):
        chosen = getattr(settings, norm_type_field(flag), None)
        if chosen is not None and flag in PROJECTIONS and norm_spec(str(chosen)).batch_statistics:
            raise ValueError(
                f"--norm-type-{flag} is {chosen!r}, which mixes positions; queries and keys are "
                "normalized position by position: choose a norm over channels"
            )
        if chosen is not None:
            return norm_spec(str(chosen)).name
    everywhere = norm_spec(str(getattr(settings, "norm_type", None) or LAYERNORM))
    if site.side == "decoder" and "encoder" in sides and everywhere.batch_statistics:
        return LAYERNORM
    return everywhere.name


def _check_site_flags(settings: object, sites: Iterable[Site], sides: Sequence[str]) -> None:
    """Refuse a flag for a site that the model does not have, and an unknown norm."""
    present = {*(site.flag for site in sites), *sides}
    for flag, meaning in SITE_FLAGS.items():
        given = getattr(settings, norm_type_field(flag), None)
        if given is None:
            continue
        norm_spec(str(given))
        if flag not in present:
            raise ValueError(
                f"--norm-type-{flag} {given}: this model has no such site; its sites are "
                f"{', '.join(sorted(present))} ({meaning})"
            )


def _check_options(settings: object, chosen: set[str]) -> None:
    """Refuse an option that no chosen norm has."""
    for name, owners in declared_options().items():
        given = getattr(settings, option_field(name), None)
        if given is not None and not chosen.intersection(owner for owner, _ in owners):
            raise ValueError(
                f"{flag_of(option_field(name))} is an option of "
                f"{', '.join(owner for owner, _ in owners)}, but {_these(chosen)}: drop it, or "
                "choose such a norm"
            )


def chosen_initialization(word: str | None, placement: Mapping[str, str]) -> dict[str, str]:
    """The initialization of each side: ``word`` if given, else that of the side's placement.

    Raises:
        ValueError: a placement cannot train from it.
    """
    found = {side: word or of_placement(name) for side, name in placement.items()}
    for side, name in placement.items():
        if reason := placement_class(name).refuses(found[side]):
            raise ValueError(
                f"{flag_of(INIT)} {found[side]} is undefined with placement {name} of the {side}: "
                f"{reason}; choose another one"
            )
    return found


def _these(chosen: set[str]) -> str:
    """The chosen norms, as an error names them."""
    if not chosen:
        return "this placement has no norm"
    return f"the chosen norms are {', '.join(norm for norm in NORM_TYPES if norm in chosen)}"


def _site_options(settings: object, site: Site, name: str) -> dict[str, OptionValue]:
    spec = norm_spec(name)
    options = given_options(settings, spec)
    heads = getattr(settings, f"{site.side}_attention_heads", 1)
    after_encoder = site == FINAL_SITES["encoder"]
    known = {option.name: option for option in spec.options}
    implied = spec.cls.transformer_options(options, heads, after_encoder)
    return {name: known[name].parse(value) for name, value in implied.items()}


def given_options(settings: object, spec: NormSpec) -> dict[str, OptionValue]:
    """The options given for a norm, in their types; the others keep the norm's own default."""
    given = {option: getattr(settings, option_field(option.name), None) for option in spec.options}
    return {option.name: option.parse(v) for option, v in given.items() if v is not None}


def store_folded(
    args: argparse.Namespace, sites: Iterable[Site], sides: Sequence[str] = SIDES
) -> None:
    """Write into ``args``, the stored settings of a run, that the norms of ``sites`` are gone.

    Options that no remaining norm has are unset, as a model refuses them; so is
    ``--norm-stat-tokens`` where none has batch statistics. ``sides`` are the stacks that the model
    has.
    """
    for site in sites:
        setattr(args, norm_type_field(site.flag), IDENTITY)
    left = {
        norm_type_of(args, site, sides)
        for site in present_sites(args, chosen_placement(args, sides), sides)
    }
    for name, owners in declared_options().items():
        if not left.intersection(owner for owner, _ in owners):
            setattr(args, option_field(name), None)
    if not any(norm_spec(name).batch_statistics for name in left):
        setattr(args, STAT_TOKENS, None)
