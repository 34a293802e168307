"""fairseq's encoder and decoder stacks with the norms of the configuration."""

from __future__ import annotations

from typing import Any

from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from norm_plugin.models.layers import (
    EmbeddingPaddingMask,
    NormTransformerDecoderLayer,
    NormTransformerEncoderLayer,
    PaddingMask,
    install_norms,
    wrap_layer,
)
from norm_plugin.models.sites import EMBEDDING_SITES, FINAL_SITES
from norm_plugin.norms.base.statistics import BatchStatisticsNorm
from norm_plugin.norms.base.workers import worker_count


def install_stack_norms(
    stack: TransformerEncoderBase | TransformerDecoderBase, cfg: Any, side: str
) -> None:
    """Put the final and the embedding norm of a stack in place."""
    dim = getattr(cfg, side).embed_dim
    stack.padding = PaddingMask()
    stack.embedding_padding = EmbeddingPaddingMask()
    install_norms(stack, cfg, [FINAL_SITES[side]], dim, stack.padding)
    install_norms(stack, cfg, [EMBEDDING_SITES[side]], dim, stack.embedding_padding)
    check_layer_drop(stack)


def check_layer_drop(stack: Any) -> None:
    """Raise ValueError where workers would leave out different layers with synced norms.

    Synced norms sum over the workers in each forward, so all workers have to call the same ones.
    """
    synced = any(isinstance(m, BatchStatisticsNorm) and m.sync for m in stack.modules())
    if synced and isinstance(stack.layers, LayerDropModuleList) and worker_count() > 1:
        raise ValueError(
            f"LayerDrop ({stack.layers.p}) leaves out other layers on each of {worker_count()} "
            "workers, and synced norms need the same: give --norm-sync off, or no --encoder- or "
            "--decoder-layerdrop"
        )


class NormTransformerEncoder(TransformerEncoderBase):
    """A stack of :class:`NormTransformerEncoderLayer`."""

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        install_stack_norms(self, cfg, "encoder")

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return wrap_layer(NormTransformerEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As in fairseq; src_tokens: (B, T)."""
        mask = src_tokens.eq(self.padding_idx)
        with self.padding.holding(mask), self.embedding_padding.holding(mask):
            return super().forward(src_tokens, *args, **kwargs)


class NormTransformerDecoder(TransformerDecoderBase):
    """A stack of :class:`NormTransformerDecoderLayer`."""

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        install_stack_norms(self, cfg, "decoder")

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        return wrap_layer(NormTransformerDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As in fairseq; prev_output_tokens: (B, T), whose last one alone is decoded in steps."""
        in_work = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        mask = in_work.eq(self.padding_idx)
        with self.padding.holding(mask), self.embedding_padding.holding(mask):
            return super().extract_features(
                prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
            )
