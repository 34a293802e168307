"""Folding norms into the neighboring linear maps, for inference.

A norm whose statistics are constant in inference computes y = gain * x + offset. If it is on the
input of a branch, as in x + f(norm(x)), y goes into linear maps only. For each of them

    W y + b = (W diag(gain)) x + (b + W offset)

and on the output of a branch, as in x + norm(f(x)), x comes from a linear map:

    gain * (W h + b) + offset = (diag(gain) W) h + (gain * b + offset)

so new weights and biases replace the norm. The maps after a norm are

    encoder-self, decoder-self    q_proj, k_proj and v_proj of the attention
    decoder-cross                 q_proj of the attention over the encoder
    encoder-ffn, decoder-ffn      fc1
    encoder-final                 k_proj and v_proj over the encoder, in every decoder layer

After folding the final norm of the encoder, the encoder returns the input of that norm. A norm
inside a branch or on its output is folded into the last map of the branch: out_proj of the
attention, or fc2. The norms of a site, and the sites of one flag, are folded in all layers or in
none. The products are computed in float64 and rounded once, so logits differ by rounding. The
placement declares at which slots a norm can be folded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from norm_plugin.declarations.flags import norm_type_field
from norm_plugin.models.layers import PlannedLayer
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.plan import IDENTITY
from norm_plugin.models.sites import EMBEDDINGS, LAST_MAPS, STACK_NORMS, Site
from norm_plugin.norms import Norm, build_norm
from norm_plugin.norms.base.contract import CannotFold, InferenceAffine
from norm_plugin.placements import (
    FINAL,
    INNER,
    INPUT,
    NOT_ONLY_INTO_MAPS,
    ON_THE_STREAM,
    OUTPUT,
    placement_class,
)

logger = logging.getLogger(__name__)

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MAPS_OF_LAYER: dict[str, tuple[str, ...]] = {
    "encoder-self": QKV,
    "encoder-ffn": ("fc1",),
    "decoder-self": QKV,
    "decoder-cross": ("encoder_attn.q_proj",),
    "decoder-ffn": ("fc1",),
}
"""The linear maps of the same layer that receive the norm's output, by site."""
MAPS_OVER_ENCODER = ("encoder_attn.k_proj", "encoder_attn.v_proj")
CROSS_SELF = {"decoder-self", "encoder-final"}
"""Sites whose outputs go through the same maps with --cross-self-attention."""


@dataclass(frozen=True)
class Folding:
    """The result for one site.

    Attributes:
        norm: the name of its norm.
        reason: why the norm was not folded; empty: it was folded.
        norms: paths in the model of the norms that were folded.
        maps: paths of the linear maps into which they were folded.
    """

    site: Site
    norm: str
    reason: str = ""
    norms: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason:
            return f"{self.site.name}: {self.norm} is not folded: {self.reason}"
        kinds = dict.fromkeys(path.rpartition(".")[2] for path in self.maps)
        return (
            f"{self.site.name}: {self.norm} folded, {len(self.norms)} "
            f"into {len(self.maps)} linear maps ({', '.join(kinds)})"
        )


def fold_norms(model: nn.Module) -> list[Folding]:
    """Fold every norm of ``model`` that can be folded; afterwards the model is for inference only.

    Weights and biases are changed in place, and folded norms are replaced by ``none``, in
    ``model.cfg`` too.

    Returns:
        One entry per site with a norm.

    Raises:
        ValueError: the model is not a ``norm_transformer``.
    """
    if not isinstance(model, NormModel):
        raise ValueError(f"{type(model).__name__} has no norms to fold; give a norm_transformer")
    by_flag: dict[str, list[Site]] = {}
    for choice in model.cfg.plan.sites:
        if choice.norm != IDENTITY:
            by_flag.setdefault(choice.site.flag, []).append(choice.site)
    return [folding for sites in by_flag.values() for folding in _fold_flag(model, sites)]


def fold_and_log(filename: str, model: nn.Module) -> None:
    """Fold the norms of a model that was loaded from ``filename``, and log the result."""
    if not isinstance(model, NormModel):
        logger.warning("%s: a %s has no norms to fold", filename, type(model).__name__)
        return
    foldings = fold_norms(model)
    for folding in foldings:
        logger.info("%s: %s", filename, folding)
    if all(folding.reason for folding in foldings):
        logger.warning("%s: no norm could be folded; decoding with all norms", filename)


def _fold_flag(model: NormModel, sites: Sequence[Site]) -> list[Folding]:
    """Fold the sites that share a flag, all or none: the flag's value becomes ``none``."""
    steps: dict[Site, list[tuple[nn.Module, InferenceAffine, list[nn.Linear]]]] = {}
    reasons: dict[Site, str] = {}
    for site in sites:
        try:
            steps[site] = [
                (owner, _inference_map(model, owner, site), _neighboring_maps(model, owner, site))
                for owner in _owners(model, site)
            ]
        except CannotFold as reason:
            reasons[site] = str(reason)
    names = {site: model.cfg.plan.at(site).norm for site in sites}
    if reasons:
        shared = f"it shares its flag with {', '.join(site.name for site in reasons)}, not foldable"
        return [Folding(site, names[site], reasons.get(site, shared)) for site in sites]
    paths = {module: path for path, module in model.named_modules()}
    foldings = []
    for site, of_site in steps.items():
        norms, maps = [], []
        for owner, channel_map, linears in of_site:
            norm: Any = getattr(owner, site.attribute)
            norms.append(paths[norm])
            maps += [paths[linear] for linear in linears]
            for linear in linears:
                fold_into(linear, channel_map, before=site.slot == OUTPUT)
            setattr(owner, site.attribute, build_norm(IDENTITY, norm.dim))
        setattr(model.cfg, norm_type_field(site.flag), IDENTITY)
        model.cfg.plan = model.cfg.plan.without(site)
        foldings.append(Folding(site, names[site], norms=tuple(norms), maps=tuple(maps)))
    return foldings


def fold_into(linear: nn.Linear, channel_map: InferenceAffine, before: bool) -> None:
    """Fold y = gain * x + offset into ``linear``, in place.

    Args:
        before: y is the output of ``linear``, (..., C), scaled and shifted; else its input.
    """
    gain, offset = channel_map
    with torch.no_grad():
        weight, bias = linear.weight.double(), linear.bias.double()
        linear.bias.copy_(gain * bias + offset if before else bias + weight @ offset)
        linear.weight.copy_(weight * (gain.unsqueeze(-1) if before else gain))


def _owners(model: NormModel, site: Site) -> list[nn.Module]:
    """Return the modules that hold the norms of ``site``: layers, or the stack itself."""
    stack = model.stack(site.side)
    if site.branch in STACK_NORMS:
        return [stack]
    # children(): iterating over layers under LayerDrop drops some of them
    layers = stack.layers.children()
    return [layer for layer in layers if isinstance(getattr(layer, site.attribute, None), Norm)]


def _inference_map(model: NormModel, owner: nn.Module, site: Site) -> InferenceAffine:
    """Return the norm of ``site`` in ``owner`` as a map with a gain and an offset."""
    norm: Norm = getattr(owner, site.attribute)
    if site.in_attention:
        into_product = "its output goes into the product of queries and keys"
        raise CannotFold(NOT_ONLY_INTO_MAPS if site.slot == "value" else into_product)
    if site.branch == EMBEDDINGS:
        raise CannotFold(ON_THE_STREAM)
    placement: Any
    if isinstance(owner, PlannedLayer):
        placement, slot = owner.placement, owner.slots[site.attribute]
    else:
        placement = placement_class(model.cfg.plan.placement[site.side])
        slot = site.slot or FINAL
    if reason := placement.reason_not_foldable(slot):
        raise CannotFold(reason)
    channel_map = norm.inference_map()
    if slot == INPUT:
        # `enter` stays in the layer, where it scales x; here it must scale the offset
        offset = placement.enter(channel_map.offset, site.branch)
        return InferenceAffine(channel_map.gain, offset)
    return channel_map


def _neighboring_maps(model: NormModel, owner: nn.Module, site: Site) -> list[nn.Linear]:
    """Return the linear maps to fold the norm of ``site`` in ``owner`` into; raise CannotFold."""
    if site.flag in CROSS_SELF and model.cfg.cross_self_attention:
        raise CannotFold("k_proj and v_proj receive the outputs of both encoder and decoder")
    if site == Site("decoder", FINAL):
        maps = [(owner, _output_map(owner))]
    elif site == Site("encoder", FINAL):
        stack = model.decoder.layers.children() if "decoder" in model.sides else ()
        layers = [layer for layer in stack if getattr(layer, "encoder_attn", None) is not None]
        maps = [(layer, path) for layer in layers for path in MAPS_OVER_ENCODER]
        heads = model.maps_after_encoder()
        maps += heads
        for name, part in model.named_children():
            known = name in model.sides or any(head in part.modules() for head, _ in heads)
            if not known and any(True for _ in part.parameters()):
                raise CannotFold(f"{name}, another part of the model, may receive its output")
    elif site.slot in (INNER, OUTPUT):
        maps = [(owner, LAST_MAPS[site.branch])]
    else:
        maps = [(owner, path) for path in MAPS_OF_LAYER[site.flag]]
    if not maps:
        raise CannotFold("no linear map receives its output")
    shared = _shared_parameters(model)
    return [_checked(attrgetter(path)(module), path, shared) for module, path in maps]


def _output_map(decoder: Any) -> str:
    """Return the name of the module that receives the decoder's output."""
    if decoder.project_out_dim is not None:
        return "project_out_dim"
    return "output_projection" if decoder.adaptive_softmax is None else "adaptive_softmax"


def _shared_parameters(model: nn.Module) -> set[int]:
    """Return the ``id`` of each parameter that occurs in more than one place of the model."""
    places = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    return {parameter for parameter, count in places.items() if count > 1}


def _checked(linear: nn.Module, path: str, shared: set[int]) -> nn.Linear:
    """Return ``linear`` if a norm can be folded into it; otherwise raise CannotFold."""
    if type(linear) is not nn.Linear:
        raise CannotFold(f"{path} is of type {type(linear).__name__}, not a plain linear map")
    if id(linear.weight) in shared:
        raise CannotFold(f"{path} shares its weights with another module")
    own = dict(linear.named_parameters(recurse=False))
    if "weight" not in own:  # as in torch's prune and weight_norm
        raise CannotFold(f"{path} computes its weight anew in each forward")
    if "bias" not in own:
        raise CannotFold(f"{path} has no bias to absorb the offset")
    return linear
