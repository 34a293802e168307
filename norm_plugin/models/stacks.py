"""fairseq's encoder and decoder stacks with the norms of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from threading import get_ident
from typing import Any, ClassVar

from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from norm_plugin.models.config import NormConfig
from norm_plugin.models.embeddings import FIXNORM, fix_embedding, fix_output_layer
from norm_plugin.models.initialization import initialize_embeddings
from norm_plugin.models.layers import (
    NormTransformerDecoderLayer,
    NormTransformerEncoderLayer,
    wrap_layer,
)
from norm_plugin.models.sites import EMBEDDINGS
from norm_plugin.norms import Norm
from norm_plugin.norms.base.padding_mask import PaddingMask
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.norms.base.workers import worker_count
from norm_plugin.placements import Placement, placement_class, split_streams


class AroundFinalNorm:
    """Hooks around the final norm of a stack, for a placement that acts there."""

    def __init__(self, placement: type[Placement], stack: nn.Module) -> None:
        self.placement, self.stack = placement, stack
        # by thread, since several may compute with one model in inference
        self.given: dict[int, tuple[Tensor, ...]] = {}

    def before(self, norm: Norm, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the norm's input, and keep the output of the last layer: a hook."""
        streams = split_streams(inputs[0], norm.dim, self.placement.streams)
        self.given[get_ident()] = streams
        return (self.placement.before_final_norm(streams, self.own_norm), *inputs[1:])

    def own_norm(self, word: str, x: Tensor) -> Tensor:
        """Apply one of the placement's own norms after the stack to x, (T, B, C)."""
        y: Tensor = getattr(self.stack, f"final_{word}_norm")(x)
        return y

    def after(self, norm: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> Tensor:
        """Replace the norm's output y by the output of the stack: a hook."""
        return self.placement.after_final_norm(self.given.pop(get_ident()), y)


class LayerDrop(LayerDropModuleList):
    """fairseq's LayerDrop, but it drops no layer while a placement measures the whole stack."""

    def __iter__(self) -> Iterator[nn.Module]:
        layers: list[Any] = list(self.children())
        whole = any(layer.placement.needs_whole_stack() for layer in layers)
        return iter(layers) if whole else super().__iter__()


def apply_plan(
    stack: TransformerEncoderBase | TransformerDecoderBase, cfg: NormConfig, side: str
) -> None:
    """Put the final norm and the norm of the embeddings of the plan into a stack of fairseq."""
    stack.padding = PaddingMask(stack)
    placement = placement_class(cfg.plan.placement[side])
    stack.layer_norm = stack.layernorm_embedding = None
    for site in cfg.plan.outside_layers[side]:
        norm = cfg.plan.at(site).build(getattr(cfg, side).embed_dim)
        # the embeddings are the one place where fairseq's x is (B, T, C)
        stack.padding.attach(norm, batch_first=site.branch == EMBEDDINGS)
        setattr(stack, site.attribute, norm)
    if placement.acts_at_final_norm():
        around = AroundFinalNorm(placement, stack)
        # before all other hooks: those of the mask and of the NaN check see what the norm sees
        stack.layer_norm.register_forward_pre_hook(around.before, prepend=True)
        stack.layer_norm.register_forward_hook(around.after)
    if cfg.plan.embedding == FIXNORM:
        stack.embed_tokens = fix_embedding(stack.embed_tokens)
    initialize_embeddings(
        stack.embed_tokens,
        stack.embed_positions,
        cfg.plan.initialization[side],
        cfg.plan.layers[side][0].place,
    )
    if isinstance(stack.layers, LayerDropModuleList):
        stack.layers = LayerDrop(stack.layers.p, stack.layers.children())
    for below, layer in pairwise(stack.layers.children()):
        layer.placement.set_layer_below(below.placement)


def check_layer_drop(stack: Any) -> None:
    """Raise ValueError if LayerDrop is combined with norms that sum over several workers.

    All workers must call the same norms, but each worker drops other layers.
    """
    if not isinstance(stack.layers, LayerDropModuleList) or worker_count() == 1:
        return
    if any(isinstance(m, BatchStatisticsNorm) and m.sync for m in stack.modules()):
        raise ValueError(
            f"LayerDrop ({stack.layers.p}) drops other layers on each of the {worker_count()} "
            "workers, but synchronized norms need the same layers on all: give --norm-sync off, "
            "or drop --encoder-layerdrop and --decoder-layerdrop"
        )


class NormTransformerEncoder(TransformerEncoderBase):
    """A stack of :class:`NormTransformerEncoderLayer`."""

    def __init__(self, cfg: NormConfig, *args: Any, **kwargs: Any) -> None:
        self.plans = iter(cfg.plan.layers["encoder"])
        super().__init__(cfg, *args, **kwargs)
        apply_plan(self, cfg, "encoder")

    def build_encoder_layer(self, cfg: NormConfig) -> nn.Module:
        layer = NormTransformerEncoderLayer(cfg, next(self.plans), self.return_fc)
        return wrap_layer(layer, cfg)

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Compute the encoder's output as in fairseq; src_tokens: (B, T)."""
        with self.padding.holding(src_tokens.eq(self.padding_idx)):
            return super().forward(src_tokens, *args, **kwargs)


class NormTransformerDecoder(TransformerDecoderBase):
    """A stack of :class:`NormTransformerDecoderLayer`, or of the layers of a subclass."""

    layer_type: ClassVar[type[NormTransformerDecoderLayer]] = NormTransformerDecoderLayer
    output_projection: nn.Linear

    def __init__(self, cfg: NormConfig, *args: Any, **kwargs: Any) -> None:
        self.plans = iter(cfg.plan.layers["decoder"])
        super().__init__(cfg, *args, **kwargs)
        apply_plan(self, cfg, "decoder")

    def build_decoder_layer(self, cfg: NormConfig, no_encoder_attn: bool = False) -> nn.Module:
        layer = self.layer_type(cfg, next(self.plans), no_encoder_attn)
        return wrap_layer(layer, cfg)

    def build_output_projection(self, cfg: NormConfig, *args: Any) -> None:
        """Build the output layer as in fairseq."""
        super().build_output_projection(cfg, *args)
        if cfg.plan.embedding == FIXNORM:
            self.output_projection = fix_output_layer(self.output_projection)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Compute features as in fairseq; prev_output_tokens: (B, T), in steps the last token."""
        current = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        with self.padding.holding(current.eq(self.padding_idx)):
            return super().extract_features(
                prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
            )
