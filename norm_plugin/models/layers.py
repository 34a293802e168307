"""fairseq's Transformer layers with the norms and the residual connections of the plan.

The modules are fairseq's: attentions, linear maps and dropout. The forward of each layer is written
here, in the order of the equation in ``norm_plugin.placements.base``. Hooks on linear maps are used
only inside an attention: for norms of queries, keys and values, and for what precedes its last map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules import FairseqDropout, MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from norm_plugin.declarations.flags import FULL
from norm_plugin.models.config import NormConfig
from norm_plugin.models.initialization import initialize
from norm_plugin.models.plan import LayerPlan, SiteChoice
from norm_plugin.models.sites import (
    ATTENTIONS,
    LAST_MAPS,
    PROJECTIONS,
    STOCK_NORMS,
    normalizes_before,
)
from norm_plugin.norms import Norm
from norm_plugin.placements import (
    INNER,
    INPUT,
    OUTPUT,
    STREAM,
    SUM,
    Placement,
    Stream,
    overrides,
)


@contextmanager
def ignoring_every_position(model: nn.Module) -> Iterator[None]:
    """Return a context in which no norm of ``model`` takes statistics of any position."""
    handles = [
        module.register_forward_pre_hook(_mask_all, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Norm) and module.batch_statistics
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mask_all(norm: Norm, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Replace the mask of a norm's input x, (..., C), given or not, by all padding: a hook."""
    if not norm.training:
        return None
    x = inputs[0]
    batch_first = named.get("batch_first", len(inputs) > 2 and inputs[2])
    tokens = x.shape[1::-1] if x.dim() == 3 and not batch_first else x.shape[:-1]
    return (x, x.new_ones(tokens, dtype=torch.bool), batch_first), {}


class LayerNorms:
    """The norms of a layer within one forward: ``norm(branch, slot, x)``.

    Args:
        padding_mask: (B, T), True at padding, or None.
        batch_first: x is (B, T, C), not (T, B, C).
    """

    def __init__(
        self, layer: PlannedLayer, padding_mask: Tensor | None, batch_first: bool = False
    ) -> None:
        self.layer, self.padding_mask, self.batch_first = layer, padding_mask, batch_first
        self.calls: dict[str, int] = {}

    def __call__(self, branch: str, slot: str, x: Any) -> Any:
        """Apply the norm at ``slot`` of ``branch`` to x, (T, B, C), or to the first of a tuple.

        Return x if there is none.
        """
        attribute = self.layer.attributes.get((branch, slot))
        if attribute is None:
            return x
        if isinstance(x, tuple):
            return (self(branch, slot, x[0]), *x[1:])
        norm: Any = self.layer._modules[attribute]
        inputs: tuple[Any, ...] = (x,)
        # Only batch statistics depend on the mask; hooks that measure norms read it, too
        if norm.training and (norm.batch_statistics or norm._forward_pre_hooks):
            call = self.calls.get(attribute, 0)
            vars(norm)["call"], self.calls[attribute] = call, call + 1  # no call of nn.Module
            inputs = (x, self.padding_mask, self.batch_first)
        y: Tensor = norm(*inputs)
        return y


def dropped(dropout: FairseqDropout, x: Tensor) -> Tensor:
    """Return ``dropout(x)``, without the calls of two modules, which cost a GPU's host time."""
    if dropout.p > 0 and (dropout.training or dropout.apply_during_inference):
        return torch.dropout(x, dropout.p, train=True)
    return x


class PlannedLayer(nn.Module):
    """The parts of the forward that the layers of both stacks share, as given by the plan.

    Attributes:
        placement: how the branches join the stream.
        is_plain: whether the placement changes nothing but where the norms are, at INPUT or SUM,
            so that no method of it need be called.
        attributes: the name of the norm at each branch and slot.
    """

    embed_dim: int
    placement: Placement
    is_plain: bool
    attributes: dict[tuple[str, str], str]
    norms_for_hooks: LayerNorms
    self_attn: MultiheadAttention
    fc1: nn.Module
    fc2: nn.Module
    activation_fn: Any
    dropout_module: FairseqDropout
    activation_dropout_module: FairseqDropout

    def install_norms(self, cfg: NormConfig, layer: LayerPlan) -> None:
        """Put norms, placement and initial weights of the plan into a layer of fairseq."""
        plan, place, placement = cfg.plan, layer.place, layer.placement
        self.normalize_before = normalizes_before(placement, place.branches)
        self.attributes = {}
        for branch in place.branches:
            setattr(self, STOCK_NORMS[branch], None)
            if branch in ATTENTIONS and (
                (branch, INNER) in layer.sites or overrides(placement, "inside")
            ):
                out_proj = self._attention(branch).out_proj
                out_proj.register_forward_pre_hook(partial(self._before_last_map, branch))
        for (branch, slot), site in layer.sites.items():
            if slot in PROJECTIONS:
                heads = 1 if plan.qkv_scope == FULL else self._attention(branch).num_heads
                self._normalize_heads(branch, plan.at(site), heads)
                continue
            self.attributes[branch, slot] = site.attribute
            last_map = attrgetter(LAST_MAPS[branch])(self)
            dim = last_map.in_features if slot == INNER else self.embed_dim
            setattr(self, site.attribute, plan.at(site).build(dim))
        self.placement = placement(place)
        slots = {slot for _, slot in self.attributes}
        self.is_plain = slots <= {INPUT, SUM} and not placement.acts_in_layers()
        initialize(self, plan.initialization[place.side], place)

    @property
    def slots(self) -> dict[str, str]:
        """Return the slot in its branch of each norm, by the norm's name."""
        return {attribute: slot for (_, slot), attribute in self.attributes.items()}

    # ---- the parts of the forward ----------------------------------------------------------------

    def norms(self, padding_mask: Tensor | None) -> LayerNorms:
        """Return the norms for a forward with this mask, (B, T)."""
        if not self.is_plain:
            # those inside fairseq's attention get no argument of ours
            self.norms_for_hooks = self.norms_within(padding_mask)
        return LayerNorms(self, padding_mask)

    def norms_within(self, padding_mask: Tensor | None) -> LayerNorms:
        """Return the norms for what precedes an attention's last map, with this mask, (B, T)."""
        return LayerNorms(self, padding_mask)

    def branch_input(self, branch: str, x: Stream, norm: LayerNorms) -> tuple[Stream, Tensor]:
        """Compute x, z = read(norm_stream(x)), y = enter(norm_input(z)); return x, y, (T, B, C)."""
        if self.is_plain:
            return x, norm(branch, INPUT, x)
        x, z = self.placement.read(norm(branch, STREAM, x), branch, norm)
        return x, self.placement.enter(norm(branch, INPUT, z), branch)

    def feed_forward(self, y: Tensor, norm: LayerNorms) -> Tensor:
        """Return W_2 norm_inner(inside(dropout(act(W_1 y)))), (T, B, C)."""
        h = dropped(self.activation_dropout_module, self.activation_fn(self.fc1(y)))
        if not self.is_plain:
            h = norm("ffn", INNER, self.placement.inside(h, "ffn"))
        f: Tensor = self.fc2(h)
        return f

    def join(self, branch: str, x: Stream, f: Tensor, norm: LayerNorms) -> Stream:
        """Return norm_sum(join(x, norm_output(dropout(f)))), (T, B, C)."""
        if self.is_plain:
            return norm(branch, SUM, x + dropped(self.dropout_module, f))
        if self.placement.norm_before_dropout:
            fx = dropped(self.dropout_module, norm(branch, OUTPUT, f))
        else:
            fx = norm(branch, OUTPUT, dropped(self.dropout_module, f))
        return norm(branch, SUM, self.placement.join(x, fx, branch))

    # ---- within the attentions -------------------------------------------------------------------

    def _attention(self, branch: str) -> MultiheadAttention:
        """Return the attention of ``branch``, set to call its linear maps.

        Otherwise torch computes it in one function that reads the weights and calls no map.
        """
        attention: MultiheadAttention = getattr(self, ATTENTIONS[branch])
        attention._set_skip_embed_dim_check()
        return attention

    def _before_last_map(
        self, branch: str, out_proj: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Replace the input of an attention's last map by norm_inner(inside(h)): a hook."""
        h = self.placement.inside(inputs[0], branch)
        return (self.norms_for_hooks(branch, INNER, h),)

    def _normalize_heads(self, branch: str, choice: SiteChoice, heads: int) -> None:
        """Put a norm on the queries, keys or values of the attention of ``branch``."""
        attention, site = self._attention(branch), choice.site
        setattr(self, site.attribute, choice.build(attention.embed_dim // heads))
        hook = partial(self._after_projection, site.attribute, heads)
        getattr(attention, PROJECTIONS[site.slot]).register_forward_hook(hook)

    def _after_projection(
        self, attribute: str, heads: int, projection: nn.Module, inputs: Any, x: Tensor
    ) -> Tensor:
        """Normalize the output x of a projection, (T, B, C), in ``heads`` parts: a hook."""
        normalized: Tensor = getattr(self, attribute)(x.unflatten(-1, (heads, -1)))
        return normalized.flatten(-2)


class NormTransformerEncoderLayer(PlannedLayer, TransformerEncoderLayerBase):
    """An encoder layer with the norms and the placement of the plan."""

    def __init__(self, cfg: NormConfig, layer: LayerPlan, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.install_norms(cfg, layer)
        # fairseq after 0.12.2 computes a loaded layer as one fused kernel, which assumes LayerNorm
        # and would skip these norms
        self.can_use_fastpath = False

    def forward(
        self, x: Tensor, encoder_padding_mask: Tensor | None, attn_mask: Tensor | None = None
    ) -> Any:
        """Compute the layer, with fairseq's signature.

        Args:
            x: (T, B, C), or with several streams concatenated.
            encoder_padding_mask: (B, T), True at padding.
            attn_mask: (T, T), nonzero where a query does not attend to a key.
        """
        if attn_mask is not None:
            # fairseq's large number: with -inf, a query without any key would be NaN
            large = 1e8 if x.dtype == torch.float32 else 1e4
            attn_mask = attn_mask.masked_fill(attn_mask.to(torch.bool), -large)
        norm = self.norms(encoder_padding_mask)
        x = x if self.is_plain else self.placement.begin(x)

        x, y = self.branch_input("self", x, norm)
        f, _ = self.self_attn(
            query=y,
            key=y,
            value=y,
            key_padding_mask=encoder_padding_mask,
            need_weights=False,
            attn_mask=attn_mask,
        )
        x = self.join("self", x, f, norm)

        x, y = self.branch_input("ffn", x, norm)
        f = self.feed_forward(y, norm)
        x = self.join("ffn", x, f, norm)
        x = x if self.is_plain else self.placement.end(x)
        return (x, f) if self.return_fc else x


class NormTransformerDecoderLayer(PlannedLayer, TransformerDecoderLayerBase):
    """A decoder layer with the norms and the placement of the plan."""

    encoder_attn: Any

    def __init__(self, cfg: NormConfig, layer: LayerPlan, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.install_norms(cfg, layer)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: Any | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> Any:
        """Compute the layer, with the arguments that fairseq's decoder gives.

        Args:
            x: (T, B, C), or with several streams concatenated.
            encoder_out: (S, B, C); None: no attention over the encoder.
            encoder_padding_mask: (B, S), True at padding.
            self_attn_mask: (T, T), -inf where a query does not attend to a key.
            self_attn_padding_mask: (B, T), True at padding.
        """
        norm = self.norms(self_attn_padding_mask)
        x, attn = x if self.is_plain else self.placement.begin(x), None

        x, y = self.branch_input("self", x, norm)
        f, attn = self.self_attn(
            query=y,
            incremental_state=incremental_state,
            need_weights=False,
            **self._keys(
                y,
                encoder_out,
                encoder_padding_mask,
                incremental_state,
                self_attn_mask,
                self_attn_padding_mask,
            ),
        )
        x = self.join("self", x, f, norm)

        if self.encoder_attn is not None and encoder_out is not None:
            x, y = self.branch_input("cross", x, norm)
            f, attn = self.encoder_attn(
                query=y,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn
                or need_head_weights
                or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
            )
            x = self.join("cross", x, f, norm)

        x, y = self.branch_input("ffn", x, norm)
        x = self.join("ffn", x, self.feed_forward(y, norm), norm)
        x = x if self.is_plain else self.placement.end(x)
        return x, attn, None

    def _keys(
        self,
        y: Tensor,
        encoder_out: Tensor | None,
        encoder_padding_mask: Tensor | None,
        incremental_state: Any | None,
        mask: Tensor | None,
        padding_mask: Tensor | None,
    ) -> dict[str, Tensor | None]:
        """Return the keys of the self-attention and its masks.

        With ``--cross-self-attention`` the encoder's output, (S, B, C), precedes y, (T, B, C),
        unless an earlier step of decoding has stored it.
        """
        keys = y
        if self.cross_self_attention and "prev_key" not in (
            self.self_attn._get_input_buffer(incremental_state) or {}
        ):
            assert encoder_out is not None
            keys = torch.cat((encoder_out, y))
            if mask is not None:
                mask = torch.cat((y.new_zeros(len(y), len(encoder_out)), mask), dim=1)
            if padding_mask is not None:
                if encoder_padding_mask is None:
                    length, batch, _ = encoder_out.shape
                    encoder_padding_mask = padding_mask.new_zeros(batch, length)
                padding_mask = torch.cat((encoder_padding_mask, padding_mask), dim=1)
        return {"key": keys, "value": keys, "attn_mask": mask, "key_padding_mask": padding_mask}


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Wrap a layer by activation checkpointing and FSDP, if the flags of the run say so."""
    checkpoint = cfg.checkpoint_activations
    if checkpoint:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always wrapped, whatever its size
    return fsdp_wrap(layer, min_num_params=0 if checkpoint else cfg.min_params_to_wrap)
