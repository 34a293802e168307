"""The plan of a model: the placement of its norms, and the norm at each site with its options.

:func:`norm_plugin.models.settle.settle` makes it from the settings of a model. Whatever builds,
describes, compares or folds a model reads its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from norm_plugin.declarations import flags
from norm_plugin.declarations.option import OptionValue
from norm_plugin.models.sites import EMBEDDINGS, Site
from norm_plugin.norms import Norm, norm_spec
from norm_plugin.norms.base.position_leak_check import check_declaration
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.placements import LayerPlace, Placement

LAYERNORM = "layernorm"
IDENTITY = "none"
ALL_SITES = "all"
RECORDS = "norm_record.jsonl.gz"
"""The default name of the file of records, in the folder of the checkpoints."""


@dataclass(frozen=True)
class SiteChoice:
    """The norm at a site.

    Attributes:
        norm: the name of the norm.
        options: the given options, and those that it has in a Transformer, in their types.
    """

    site: Site
    norm: str
    options: Mapping[str, OptionValue]

    @property
    def all_options(self) -> dict[str, OptionValue]:
        """Every option of the norm; those that are not given have their defaults."""
        defaults = {option.name: option.default for option in norm_spec(self.norm).options}
        return {**defaults, **self.options}

    def build(self, dim: int) -> Norm:
        """Build the norm over ``dim`` channels; ValueError if it mixes positions undeclared."""
        spec, options = norm_spec(self.norm), dict(self.options)
        try:
            norm = spec.build(dim, **options)
        except ValueError as error:
            raise ValueError(f"{self.site.name}: {error}") from error
        check_declaration(spec, norm, options)
        if isinstance(norm, BatchStatisticsNorm):
            norm.loss_is_summed = True  # by every criterion of fairseq
        return norm


@dataclass(frozen=True)
class RecordSettings:
    """The settings of ``--norm-record``: how often, at which sites, into which file.

    Attributes:
        every: updates 1, 1 + every, 1 + 2 every and so on are recorded.
        sites: ``all``, sides and flags of sites.
        file: the path to write; None: :data:`RECORDS` in the folder of the checkpoints.
    """

    every: int
    sites: tuple[str, ...] = (ALL_SITES,)
    file: str | None = None

    def includes(self, site: Site) -> bool:
        """Return whether the norms at ``site`` are recorded."""
        return not {ALL_SITES, site.side, site.flag}.isdisjoint(self.sites)

    def path(self, save_dir: str) -> Path:
        """Return the file of a run with this ``--save-dir``."""
        return Path(self.file) if self.file else Path(save_dir) / RECORDS


@dataclass(frozen=True)
class LayerPlan:
    """The placement and the norms of a layer.

    Attributes:
        place: the position of the layer in its model.
        placement: the placement of this layer.
        sites: the sites of its norms, by branch and slot.
    """

    place: LayerPlace
    placement: type[Placement]
    sites: Mapping[tuple[str, str], Site]


@dataclass(frozen=True)
class Plan:
    """The norms of a model, as its settings define them; see the flags of the same names.

    Attributes:
        placement, initialization: by side.
        layers: the layers from bottom to top, by side.
        outside_layers: the sites of the final norms and of the norm of the embeddings, by side.
        sites: the norm of each site that the model has.
        record: the settings of recording; None: nothing is recorded.
        ghost_batch_tokens: the number of tokens per batch statistic; None: those of the batch.
    """

    placement: Mapping[str, str]
    layers: Mapping[str, list[LayerPlan]]
    outside_layers: Mapping[str, list[Site]]
    sites: tuple[SiteChoice, ...]
    initialization: Mapping[str, str]
    kernels: str
    nan_check: bool
    allow_mismatch: bool
    record: RecordSettings | None
    ghost_batch_tokens: int | None
    embedding: str
    qkv_scope: str

    def at(self, site: Site) -> SiteChoice:
        """Return the norm at a site that the model has."""
        return next(choice for choice in self.sites if choice.site == site)

    def without(self, site: Site) -> Plan:
        """Return the plan with ``none`` at a site, as after folding."""
        gone = SiteChoice(site, IDENTITY, {})
        return replace(self, sites=tuple(gone if c.site == site else c for c in self.sites))

    def to_settings(self) -> dict[str, str]:
        """Return the settings that are stored with a run, by key."""
        values = {
            flags.EMBEDDING: self.embedding,
            flags.QKV_SCOPE: self.qkv_scope,
            flags.KERNELS_CHOICE: self.kernels,
            flags.NAN_CHECK: "on" if self.nan_check else "off",
            flags.ALLOW_MISMATCH: "on" if self.allow_mismatch else "off",
        }
        placements, inits = set(self.placement.values()), set(self.initialization.values())
        if len(placements) == 1:
            values[flags.PLACEMENT] = placements.pop()
        else:
            values |= {flags.PLACEMENT_OF[side]: name for side, name in self.placement.items()}
        if len(inits) == 1:
            values[flags.INIT] = inits.pop()
        for choice in self.sites:
            # One flag for both sides, whose norms may differ; that of a projection adds norms, too
            shared = choice.site.branch == EMBEDDINGS or choice.site.in_attention
            if not shared:
                values[flags.norm_type_field(choice.site.flag)] = choice.norm
        return values
