"""The sites of a Transformer, where it has norms; they depend on the placement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from norm_plugin.placements import (
    FINAL,
    INPUT,
    STREAM,
    SUM,
    LayerPlace,
    Placement,
    overrides,
    placement_class,
)

SIDES = ("encoder", "decoder")


def sides_of(model: object) -> tuple[str, ...]:
    """Return the stacks of a model, of this plugin or of fairseq."""
    return tuple(side for side in SIDES if getattr(model, side, None) is not None)


STOCK_NORMS = {
    "self": "self_attn_layer_norm",
    "cross": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}
"""fairseq's own norm of each branch of a layer: on the branch's input, or on the sum after it."""
LAST_MAPS = {"self": "self_attn.out_proj", "cross": "encoder_attn.out_proj", "ffn": "fc2"}
"""The last linear map of each branch."""


EMBEDDINGS = "embedding"
STACK_NORMS = {FINAL: "layer_norm", EMBEDDINGS: "layernorm_embedding"}
"""fairseq's own norms of a stack: after its last layer, and of the embeddings."""
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
"""The map whose output the norm receives, by the slot of a norm within an attention."""
ATTENTIONS = {"self": "self_attn", "cross": "encoder_attn"}
"""fairseq's attention of each branch of a layer."""


class Site(NamedTuple):
    """A place of a norm in the model.

    Attributes:
        side: ``encoder`` or ``decoder``.
        branch: a branch of a layer, or outside the layers FINAL or EMBEDDINGS.
        slot: the slot in the branch of a norm that fairseq does not have, or a word of the
            placement for a norm of its own after the stack; empty for fairseq's norm.
    """

    side: str
    branch: str
    slot: str = ""

    @property
    def in_attention(self) -> bool:
        """Whether it is a norm of queries, keys or values."""
        return self.slot in PROJECTIONS

    @property
    def flag(self) -> str:
        """The end of ``--norm-type-...``; several sites may share one, as both embeddings do."""
        if self.in_attention:
            return self.slot
        return EMBEDDINGS if self.branch == EMBEDDINGS else f"{self.side}-{self.branch}"

    @property
    def attribute(self) -> str:
        """The name of the norm in its layer or stack."""
        if self.slot:
            return f"{self.branch}_{self.slot}_norm"
        return {**STOCK_NORMS, **STACK_NORMS}[self.branch]

    @property
    def name(self) -> str:
        """The name of the site in logs and errors."""
        words = (self.side, self.branch, self.slot)
        if self.in_attention:
            words = (self.side, self.slot, self.branch)
        return "-".join(filter(None, words))

    def is_at(self, path: str) -> bool:
        """Return whether the module at ``path`` of a model is the norm of this site."""
        parts = path.split(".")
        if "lm_head" in parts:  # of a masked language model; its LayerNorm is no site
            return False
        return parts[0] == self.side and parts[-1] == self.attribute


def normalizes_before(cls: type[Placement], branches: Sequence[str]) -> bool:
    """Return whether fairseq's own norms precede the branches of a layer with this placement."""
    slots = {slot for branch in branches for slot in cls.norms_of(branch)}
    return bool({INPUT, STREAM} & slots) or overrides(cls, "read") or overrides(cls, "enter")


def layer_sites(
    place: LayerPlace, cls: type[Placement], projections: Collection[str] = ()
) -> dict[tuple[str, str], Site]:
    """Return the sites of a layer, by branch and slot.

    Args:
        cls: the placement of this layer.
        projections: which of ``query``, ``key`` and ``value`` have a norm in every attention,
            whatever the placement.
    """
    stock = INPUT if normalizes_before(cls, place.branches) else SUM
    sites = {}
    for branch in place.branches:
        slots = cls.norms_of(branch)
        for slot in slots:
            if slot not in PROJECTIONS:
                sites[branch, slot] = Site(place.side, branch, "" if slot == stock else slot)
        for head in PROJECTIONS if branch in ATTENTIONS else ():
            if head in slots or head in projections:
                sites[branch, head] = Site(place.side, branch, head)
    return sites


def sites_outside_layers(settings: object, side: str, placement: str) -> list[Site]:
    """Return the sites of a stack outside its layers: after them, and of the embeddings."""
    cls, sites = placement_class(placement), []
    dropped = side == "decoder" and getattr(settings, "no_decoder_final_norm", False)
    if dropped and cls.acts_at_final_norm():
        raise ValueError(
            f"placement {placement} computes the decoder's output at its final norm, but "
            "--no-decoder-final-norm is given: drop it, or choose another placement"
        )
    if cls.final_norm and not dropped:
        sites = [Site(side, FINAL, word) for word in ("", *cls.final_norms)]
    if getattr(settings, "layernorm_embedding", False) or cls.embedding_norm:
        sites.append(Site(side, EMBEDDINGS))
    return sites


def layer_places(settings: object, side: str, sides: Sequence[str] = SIDES) -> list[LayerPlace]:
    """Return the places of the layers of a stack, from the first layer up.

    Layers kept by ``--encoder-layers-to-keep`` keep the places at which they were trained.
    """
    layers = {name: getattr(settings, f"{name}_layers", None) or 1 for name in sides}
    crosses = (
        side == "decoder" and "encoder" in sides and not getattr(settings, "no_cross_attention", 0)
    )
    layers_to_keep = getattr(settings, f"{side}_layers_to_keep", None)
    indices = sorted(map(int, layers_to_keep.split(","))) if layers_to_keep else range(layers[side])
    return [
        LayerPlace(
            side,
            index + 1,
            encoder_layers=layers.get("encoder", 0),
            decoder_layers=layers.get("decoder", 0),
            dim=getattr(settings, f"{side}_embed_dim", None) or 1,
            branches=("self", "cross", "ffn") if crosses else ("self", "ffn"),
            heads=getattr(settings, f"{side}_attention_heads", None) or 1,
        )
        for index in indices
    ]
