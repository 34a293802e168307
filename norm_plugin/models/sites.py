"""The sites of a Transformer, where it has norms; they depend on the placement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from norm_plugin.placements import (
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


class Site(NamedTuple):
    """A place in the model.

    Attributes:
        flag: the end of ``--norm-type-...``; several sites may share one, as both embeddings do.
        side: ``encoder`` or ``decoder``.
        attribute: name of the norm in its layer or stack.
        slot: the slot in its branch of a norm that fairseq does not have; for norms of queries,
            keys and values, the branch; for a placement's own norm, its word; else empty.
    """

    flag: str
    side: str
    attribute: str
    slot: str = ""

    @property
    def name(self) -> str:
        """The name of the site in logs and errors."""
        name = self.flag if self.flag.startswith(self.side) else f"{self.side}-{self.flag}"
        return f"{name}-{self.slot}" if self.slot else name

    def is_at(self, path: str) -> bool:
        """Return whether the module at ``path`` of a model is the norm of this site."""
        parts = path.split(".")
        if "lm_head" in parts:  # of a masked language model; its LayerNorm is no site
            return False
        return parts[0] == self.side and parts[-1] == self.attribute


PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
"""The map whose output the norm receives, by the flag of a site within attentions."""
ATTENTIONS = {"self": "self_attn", "cross": "encoder_attn"}
"""fairseq's attention of each branch of a layer."""


FINAL_SITES = {side: Site(f"{side}-final", side, "layer_norm") for side in SIDES}
EMBEDDING_SITES = {side: Site("embedding", side, "layernorm_embedding") for side in SIDES}


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
        flag, slots = f"{place.side}-{branch}", cls.norms_of(branch)
        for slot in slots:
            if slot not in PROJECTIONS:
                attribute = STOCK_NORMS[branch] if slot == stock else f"{branch}_{slot}_norm"
                own = "" if slot == stock else slot
                sites[branch, slot] = Site(flag, place.side, attribute, own)
        for head in PROJECTIONS if branch in ATTENTIONS else ():
            if head in slots or head in projections:
                sites[branch, head] = Site(head, place.side, f"{branch}_{head}_norm", branch)
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
        flag = FINAL_SITES[side].flag
        own = [Site(flag, side, f"final_{word}_norm", word) for word in cls.final_norms]
        sites = [FINAL_SITES[side], *own]
    if getattr(settings, "layernorm_embedding", False) or cls.embedding_norm:
        sites.append(EMBEDDING_SITES[side])
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
