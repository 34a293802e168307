"""fairseq's Transformer layers with the norms and the residual connections of the plan.

fairseq's forward is used as it is. A layer of fairseq has one norm for each branch, on its input or
on the sum after it, as ``normalize_before`` says. That norm is replaced by ours. Norms at other
slots are called in ``residual_connection``, which fairseq calls once for each branch, and which
joins the branch and the stream. Those inside a branch are called by a hook of its last map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from fairseq.distributed import fsdp_wrap
from fairseq.modules import FairseqDropout, MultiheadAttention
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from norm_plugin.kernels import HasKernelChoice, resolve
from norm_plugin.kernels.dropout import dropout_sum
from norm_plugin.models.config import NormConfig
from norm_plugin.models.flags import FULL, FUSED_DROPOUT, flag_of
from norm_plugin.models.initialization import initialize
from norm_plugin.models.plan import SiteChoice
from norm_plugin.models.sites import (
    ATTENTIONS,
    BRANCH_ENDS,
    LAST_MAPS,
    PROJECTIONS,
    STOCK_NORMS,
    branch_sites,
    head_sites,
    normalizes_before,
)
from norm_plugin.norms.base.padding_mask import PaddingMask
from norm_plugin.placements import (
    IN_ATTENTION,
    INNER,
    OUTPUT,
    STREAM,
    SUM,
    LayerPlace,
    Placement,
    overrides,
    placement_class,
)


@contextmanager
def ignoring_every_position(model: nn.Module) -> Iterator[None]:
    """Within this context every position is padding to the norms of ``model``."""
    masks: list[Any] = [module.padding for module in model.modules() if hasattr(module, "padding")]
    before = [mask.ignoring for mask in masks]  # True within another such context
    for mask in masks:
        mask.ignoring = True
    try:
        yield
    finally:
        for mask, ignoring in zip(masks, before):
            mask.ignoring = ignoring


class DeferredDropout(FairseqDropout, HasKernelChoice):
    """``--norm-fused-dropout on``: after each branch of a layer it does nothing until :meth:`sum`.

    Like a norm it computes by the kernels that are there, until ``set_kernels`` says otherwise.
    """

    def __init__(self, dropout: FairseqDropout) -> None:
        super().__init__(dropout.p, dropout.module_name)
        self.kernels = resolve(None)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x, the output of a branch, as it is."""
        return x

    def sum(self, stream: Tensor, branch: Tensor) -> Tensor:
        """stream + dropout(branch), both (T, B, C)."""
        if self.p > 0 and (self.training or self.apply_during_inference):
            return dropout_sum(stream, branch, self.p, self.kernels)
        return stream + branch


def fuse_dropout(dropout: FairseqDropout, placement: Placement) -> DeferredDropout:
    """``dropout`` computed with the residual sum; ValueError if a placement has more between."""
    cls = type(placement)
    if overrides(cls, "join") or any(OUTPUT in cls.norms_of(b) for b in placement.place.branches):
        raise ValueError(
            f"{flag_of(FUSED_DROPOUT)} on needs branches that end in x + f, but this placement is "
            f"{cls.equation}: leave the flag out"
        )
    return DeferredDropout(dropout)


class PlannedLayer(nn.Module):
    """What the layers of both stacks do as the plan says.

    Attributes:
        padding: hands the padding mask to the norms; it is a ``padding_type``.
        placement: how the branches join the stream.
        slots: by the name of a norm's attribute, its slot in the branch.
    """

    padding_type: ClassVar[type[PaddingMask]] = PaddingMask
    embed_dim: int
    padding: PaddingMask
    placement: Placement
    slots: dict[str, str]
    dropout_module: FairseqDropout

    def follow(self, cfg: NormConfig, place: LayerPlace) -> None:
        """Put norms, placement and initial weights of the plan into a layer of fairseq."""
        plan = cfg.plan
        cls = placement_class(plan.placement[place.side]).at(place)
        self.normalize_before = normalizes_before(cls, place.branches)
        self.padding = self.padding_type(self)
        self.slots = {}
        self._branch = ""  # the one that has ended, and is to join the stream
        self._stream: Tensor | None = None  # what the current branch joins, if not fairseq's x
        for branch in place.branches:
            attrgetter(BRANCH_ENDS[branch])(self).register_forward_hook(
                partial(self._after_branch, branch)
            )
            slots = cls.norms_of(branch)
            self.put(STOCK_NORMS[branch], nn.Identity(), cls)
            for slot, site in branch_sites(place, branch, cls).items():
                if slot in IN_ATTENTION:
                    continue
                last_map = attrgetter(LAST_MAPS[branch])(self)
                dim = last_map.in_features if slot == INNER else self.embed_dim
                self.slots[site.attribute] = slot
                norm = plan.at(site).build(dim)
                self.padding.serve(norm)
                self.put(site.attribute, norm, cls)
            if INNER in slots or overrides(cls, "inside"):
                before = partial(self._before_last_map, branch)
                self._last_map(branch).register_forward_pre_hook(before)
            if OUTPUT in slots and cls.norm_before_dropout:
                self._last_map(branch).register_forward_hook(partial(self._after_last_map, branch))
            for flag, site in head_sites(place.side, branch).items():
                if plan.has(site):
                    heads = 1 if plan.head_width == FULL else self._attention(branch).num_heads
                    self._normalize_heads(branch, flag, site.attribute, plan.at(site), heads)
        self.placement = cls(place)
        self.placement.norm = self._extra_norm
        if plan.fused_dropout:
            self.dropout_module = fuse_dropout(self.dropout_module, self.placement)
        initialize(self, plan.initialization[place.side], place)

    def put(self, attribute: str, norm: nn.Module, cls: type[Placement]) -> None:
        """Let ``norm`` be the one named ``attribute``; ``cls`` is the layer's placement."""
        setattr(self, attribute, norm)
        for branch, stock_norm in STOCK_NORMS.items():
            if stock_norm != attribute or not self.normalize_before:
                continue
            if STREAM in cls.norms_of(branch) or overrides(cls, "read"):
                # before all hooks: those of the mask and of the NaN check see what the norm sees
                norm.register_forward_pre_hook(partial(self._read, branch), prepend=True)
            if overrides(cls, "enter"):
                norm.register_forward_hook(partial(self._enter, branch))

    def _read(self, branch: str, norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The hook before the module on the input of a branch, which fairseq gives the stream."""
        x = self._extra_norm(branch, STREAM, inputs[0])
        self._stream, z = self.placement.read(x, branch)
        return (z, *inputs[1:])

    def _enter(self, branch: str, norm: nn.Module, inputs: Any, y: Tensor) -> Tensor:
        """The hook after a norm on the input of a branch."""
        return self.placement.enter(y, branch)

    def _last_map(self, branch: str) -> nn.Module:
        """The last map of a branch, whose hooks fairseq calls from now on."""
        if branch in ATTENTIONS:
            self._attention(branch)
        last_map: nn.Module = attrgetter(LAST_MAPS[branch])(self)
        return last_map

    def _attention(self, branch: str) -> MultiheadAttention:
        """The attention of ``branch``, whose linear maps fairseq calls from now on.

        Else torch computes it in one function, which takes the weights of the maps and calls none.
        """
        attention: MultiheadAttention = getattr(self, ATTENTIONS[branch])
        attention._set_skip_embed_dim_check()
        return attention

    def _normalize_heads(
        self, branch: str, flag: str, attribute: str, choice: SiteChoice, heads: int
    ) -> None:
        """Put a norm on the queries, keys or values of the attention of ``branch``."""
        attention = self._attention(branch)
        setattr(self, attribute, choice.build(attention.embed_dim // heads))
        hook = partial(self._after_projection, attribute, heads)
        getattr(attention, PROJECTIONS[flag]).register_forward_hook(hook)

    def _after_projection(
        self, attribute: str, heads: int, projection: nn.Module, inputs: Any, x: Tensor
    ) -> Tensor:
        """The hook after a projection: its output x, (T, B, C), normalized in ``heads`` parts."""
        normalized: Tensor = getattr(self, attribute)(x.unflatten(-1, (heads, -1)))
        return normalized.flatten(-2)

    def _before_last_map(
        self, branch: str, last_map: nn.Module, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The hook before the last map of a branch."""
        return (self._extra_norm(branch, INNER, self.placement.inside(inputs[0], branch)),)

    def _after_last_map(self, branch: str, last_map: nn.Module, inputs: Any, fx: Tensor) -> Tensor:
        """The hook after the last map of a branch, before its dropout."""
        return self._extra_norm(branch, OUTPUT, fx)

    def _after_branch(self, branch: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """The hook after the module that a branch ends with."""
        self._branch = branch

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        """fairseq's: the output of a branch and the stream, both (T, B, C), to the new stream."""
        branch = self._branch
        if self._stream is not None:
            residual, self._stream = self._stream, None
        if isinstance(self.dropout_module, DeferredDropout):
            return self._extra_norm(branch, SUM, self.dropout_module.sum(residual, x))
        fx = x if self.placement.norm_before_dropout else self._extra_norm(branch, OUTPUT, x)
        return self._extra_norm(branch, SUM, self.placement.join(residual, fx, branch))

    def _extra_norm(self, branch: str, slot: str, x: Tensor) -> Tensor:
        """The norm at a slot where fairseq has none; x itself if there is no such norm."""
        norm = getattr(self, f"{branch}_{slot}_norm", None)
        return x if norm is None else norm(x)


class NormTransformerEncoderLayer(PlannedLayer, TransformerEncoderLayerBase):
    """An encoder layer with the norms and the placement of the plan."""

    def __init__(self, cfg: NormConfig, place: LayerPlace, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.follow(cfg, place)
        # fairseq after 0.12.2 computes a loaded layer as one fused kernel, which knows LayerNorm
        # only and would pass these norms over
        self.can_use_fastpath = False

    def forward(
        self, x: Tensor, encoder_padding_mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        """As in fairseq; x: (T, B, C), encoder_padding_mask: (B, T) or None."""
        with self.padding.holding(encoder_padding_mask):
            x = self.placement.begin(x)
            output: Any = super().forward(x, encoder_padding_mask, *args, **kwargs)
            if self.return_fc:  # the output of the feed-forward network too
                return (self.placement.end(output[0]), *output[1:])
            return self.placement.end(output)


class NormTransformerDecoderLayer(PlannedLayer, TransformerDecoderLayerBase):
    """A decoder layer with the norms and the placement of the plan."""

    def __init__(self, cfg: NormConfig, place: LayerPlace, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.follow(cfg, place)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        *args: Any,
        self_attn_padding_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in fairseq; x: (T, B, C), self_attn_padding_mask: (B, T) or None."""
        with self.padding.holding(self_attn_padding_mask):
            x, *others = super().forward(
                self.placement.begin(x),
                encoder_out,
                *args,
                self_attn_padding_mask=self_attn_padding_mask,
                **kwargs,
            )
            return (self.placement.end(x), *others)


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Activation checkpointing and FSDP around a layer, as the flags of the run ask."""
    checkpoint = cfg.checkpoint_activations
    if checkpoint:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always wrapped, whatever its size
    return fsdp_wrap(layer, min_num_params=0 if checkpoint else cfg.min_params_to_wrap)
