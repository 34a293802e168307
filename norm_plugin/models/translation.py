"""The model ``norm_transformer``: fairseq's Transformer with a chosen norm at every site."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer import TransformerModelBase
from torch import nn

from norm_plugin.models.config import NormConfig
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.stacks import NormTransformerDecoder, NormTransformerEncoder


@register_model("norm_transformer")
class NormTransformerModel(NormModel, TransformerModelBase):
    """fairseq's Transformer; with ``--norm-type layernorm`` it is the stock model."""

    tasks = ("translation",)

    @classmethod
    def build_planned(cls, cfg: NormConfig, task: Any) -> Any:
        return super(NormModel, cls).build_model(cfg, task)

    @classmethod
    def build_encoder(cls, cfg: NormConfig, src_dict: Any, embed_tokens: nn.Embedding) -> Any:
        return NormTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: NormConfig, tgt_dict: Any, embed_tokens: nn.Embedding) -> Any:
        return NormTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )
