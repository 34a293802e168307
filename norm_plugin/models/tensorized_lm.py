"""The model ``norm_tensorized_lm``: a decoder with block-term attention, with any norm.

Ma et al. 2019, "A Tensorized Transformer for Language Modeling", arXiv 1906.09777. It is the model
of the PowerNorm paper's Tables II and III. A layer sees a window of L tokens. With q, k, v of R
channels each from the input of the attention, r_j = W_r R_(L - 1 - j), and a core g of R numbers,

    T_i[j, k] = sum over h of g_h ((q_i + u)_h k_jh + (q_i + v_r)_h r_jh) v_kh

for each position i, and T_i, flattened to L^2 numbers, is mapped to the channels by one matrix for
all positions. There is no softmax over keys. u and v_r are vectors that all layers share
(``content_bias`` and ``position_bias``); see ``relative.py`` for R_k, the initialization and the
output layer.

    --tensorized-mask causal      T_i[j, k] = 0 unless j <= i and k <= i: the default
    --tensorized-mask released    every j and k: what the public code computes

The text of the paper was not read for this file. The equations are those of the public code
(szhangtju/The-compression-of-Transformer, BTD-Transformer/transformer_upload.py), which computes a
causal mask and does not use it, so that each position sees the tokens that it predicts. The
PowerNorm paper speaks of masking; whether its runs masked is not known. A loss of the released form
is not comparable with that of any language model, so such a model is scored only with
``--score-released`` or ``--model-overrides "{'score_released': True}"``, and the result then says
so.

With N cores, ``--cores N``, T_i is the mean over those of the cores, as in that code. Its cores
share q, k and v, so this equals the T_i of one core, the mean of the g: more cores add parameters
but no functions. g starts as the softmax of N numbers, which that code leaves uninitialized; here
they are standard normal.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from norm_plugin.declarations.flags import flag_of
from norm_plugin.models.architectures import register, set_missing, set_size
from norm_plugin.models.config import NormConfig
from norm_plugin.models.language_model import NormTransformerLanguageModel
from norm_plugin.models.layers import LayerNorms, NormTransformerDecoderLayer
from norm_plugin.models.plan import LayerPlan
from norm_plugin.models.relative import (
    FINAL_NORM,
    RelativeDecoder,
    Settings,
    draw,
    set_defaults,
    settings_class,
)

logger = logging.getLogger(__name__)

MODEL = "norm_tensorized_lm"
CAUSAL, RELEASED = "causal", "released"
MASK, SCORE = "tensorized_mask", "score_released"
SETTINGS: Settings = {
    "rank": (int, 40, "R, the channels of queries, keys and values"),
    "cores": (int, 1, "core vectors of each attention"),
    MASK: (
        ChoiceEnum([CAUSAL, RELEASED]),
        CAUSAL,
        "causal: a position sees no later one; released: it sees all, as in the public code",
    ),
    SCORE: (bool, False, "allow scoring a model with --tensorized-mask released, which sees ahead"),
    **FINAL_NORM,
}
"""The flags of this model in addition to those of fairseq's language model."""


class BlockTermAttention(MultiheadAttention):
    """Attention by a tensor of order three at each position.

    Attributes:
        core: g, (cores, R).
        r_proj: W_r.
    """

    def __init__(self, dim: int, rank: int, cores: int, window: int, masked: bool) -> None:
        # Norms of queries, keys and values are taken over heads: here a single one of R channels
        super().__init__(rank, 1, bias=False, self_attention=True)
        self.window, self.masked = window, masked
        self.q_proj, self.k_proj, self.v_proj, self.r_proj = (
            nn.Linear(dim, rank, bias=False) for _ in range(4)
        )
        self.out_proj = nn.Linear(window**2, dim, bias=False)
        self.core = nn.Parameter(torch.randn(cores, rank).softmax(-1))

    def forward(
        self,
        query: Tensor,
        shared: tuple[Tensor, Tensor, Tensor],
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Return the output, (T, B, C).

        Args:
            query: (T, B, C), with T up to L.
            shared: R_(L - 1) to R_0, (L, C), u and v_r, (1, R).
            key_padding_mask: (B, T), True at padding.
        """
        positions, u, v_r = shared
        length = query.size(0)
        q, k, v = (proj(query).transpose(0, 1) for proj in (self.q_proj, self.k_proj, self.v_proj))
        g, r = self.core.mean(0), self.r_proj(positions[:length])
        # (B, i, j, R)
        pairs = (g * (q + u)).unsqueeze(2) * k.unsqueeze(1) + (g * (q + v_r)).unsqueeze(2) * r
        seen = query.new_ones(length, length)
        if self.masked:
            seen = seen.tril()  # j <= i
        tensor = (pairs * seen.unsqueeze(-1)).flatten(1, 2) @ v.transpose(1, 2)  # (B, i j, k)
        tensor = tensor.unflatten(1, (length, length)) * seen.unsqueeze(1)
        if key_padding_mask is not None:
            tokens = (~key_padding_mask).to(tensor.dtype)
            tensor = tensor * tokens[:, None, :, None] * tokens[:, None, None, :]
        missing = self.window - length
        row = nn.functional.pad(tensor, (0, missing, 0, missing)).flatten(-2)
        output: Tensor = self.out_proj(row)
        return output.transpose(0, 1)


class TensorizedLayer(NormTransformerDecoderLayer):
    """A decoder layer with block-term attention."""

    self_attn: BlockTermAttention

    def build_self_attention(self, embed_dim: int, cfg: NormConfig, **kwargs: Any) -> Any:
        settings: Any = cfg
        return BlockTermAttention(
            embed_dim,
            settings.rank,
            settings.cores,
            window=settings.max_target_positions,
            masked=getattr(settings, MASK) != RELEASED,
        )

    def install_norms(self, cfg: NormConfig, layer: LayerPlan) -> None:
        self.apply(draw)
        super().install_norms(cfg, layer)

    def norms_within(self, padding_mask: Tensor | None) -> LayerNorms:
        """Return the norms for what precedes the attention's last map, (B, T, L^2)."""
        return LayerNorms(self, padding_mask, batch_first=True)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        positions: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        padding_mask: Tensor | None,
    ) -> Tensor:
        """Return the new stream.

        Args:
            x: (T, B, C), or with several streams concatenated.
            positions: R_(L - 1) to R_0, (L, C).
            content_bias, position_bias: u and v_r, (1, R).
            padding_mask: (B, T).
        """
        norm = self.norms(padding_mask)
        x, y = self.branch_input("self", self.placement.begin(x), norm)
        f = self.self_attn(y, (positions, content_bias, position_bias), padding_mask)
        x = self.join("self", x, f, norm)

        x, y = self.branch_input("ffn", x, norm)
        x = self.join("ffn", x, self.feed_forward(y, norm), norm)
        return self.placement.end(x)


class TensorizedDecoder(RelativeDecoder):
    """A stack of :class:`TensorizedLayer`."""

    layer_type = TensorizedLayer

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: Any | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the features, (B, T, C); with an incremental state only those of the last token.

        Args:
            prev_output_tokens: (B, T); ValueError if T is more than the window.
        """
        window = self.max_target_positions
        if prev_output_tokens.size(1) > window:
            raise ValueError(
                f"{prev_output_tokens.size(1)} tokens exceed the window of this model, {window}: "
                f"give --tokens-per-sample {window}"
            )
        padding = prev_output_tokens.eq(self.padding_idx)
        mask = padding if padding.any() else None
        x = self.embedded(prev_output_tokens)
        positions = self.positions(torch.arange(window - 1, -1, -1, device=x.device), x)
        with self.padding.holding(padding):
            x = self.begin(x)
            for layer in self.layers:
                x = layer(x, positions, self.content_bias, self.position_bias, mask)
            if self.layer_norm is not None:
                x = self.layer_norm(x)
        x = self.end(x)
        return (x if incremental_state is None else x[:, -1:]), {"attn": [None]}


@register_model(MODEL)
class NormTensorizedLanguageModel(NormTransformerLanguageModel):
    """The tensorized Transformer with a chosen norm at every site."""

    stock_settings = settings_class("TensorizedConfig", SETTINGS)
    decoder_type = TensorizedDecoder
    decoder: TensorizedDecoder
    refused = {
        **NormTransformerLanguageModel.refused,
        "attention_dropout": "it has no attention weights",
        "decoder_learned_pos": "its positions are sinusoids",
        "decoder_xformers_att_config": "it has its own attention",
        "quant_noise_pq": "it has its own attention",
    }

    @classmethod
    def build_model(cls, args: Any, task: Any) -> Any:
        mask = getattr(args, MASK)
        if mask not in (CAUSAL, RELEASED):
            raise ValueError(f"{MASK} is {mask!r}; choose from {CAUSAL}, {RELEASED}")
        if args.decoder_attention_heads != 1:
            raise ValueError(
                f"--decoder-attention-heads is {args.decoder_attention_heads}; it must be 1, since "
                "block-term attention has one head, whose channels are --rank: drop the flag"
            )
        return super().build_model(args, task)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare as fairseq does; ValueError if the model sees its targets, unless allowed."""
        settings: Any = self.cfg
        if getattr(settings, MASK) == RELEASED:
            flag = f"{flag_of(MASK)} {RELEASED}"
            if not getattr(settings, SCORE):
                raise ValueError(
                    f"this model was trained with {flag}, so every position sees the token that it "
                    "predicts, and its scores are not comparable; to compute them anyway, give "
                    f"--model-overrides \"{{'{SCORE}': True}}\""
                )
            self.remark = f"{flag}: every position sees the token that it predicts"
            logger.warning(self.remark)
        super().prepare_for_inference_(cfg)


def base_architecture(args: Any) -> None:
    """Set the public code's sizes on PTB: 3 layers of 256, R 40, FFN 2100, dropout 0.3."""
    set_size(args, "decoder", embed_dim=256, ffn_embed_dim=2100, layers=3, attention_heads=1)
    set_missing(args, dropout=0.3)
    set_defaults(args, SETTINGS)


def wikitext103_architecture(args: Any) -> None:
    """Set the public code's sizes on WikiText-103: 6 layers, dropout 0.1, adaptive input, softmax.

    The cutoffs are those of Transformer-XL's code, on which that code is based.
    """
    set_missing(args, decoder_layers=6, dropout=0.1)
    cutoffs = "20000,40000,200000"
    set_missing(args, adaptive_input=True, adaptive_input_cutoff=cutoffs, adaptive_input_factor=1)
    set_missing(args, adaptive_softmax_cutoff=cutoffs, adaptive_softmax_factor=1)
    set_missing(args, tie_adaptive_weights=True, tie_adaptive_proj=True)
    base_architecture(args)


def char_architecture(args: Any) -> None:
    """Set a model of characters for a CPU: 3 layers of 128, R 32, FFN 512, no dropout."""
    set_size(args, "decoder", embed_dim=128, ffn_embed_dim=512, layers=3)
    set_missing(args, rank=32, dropout=0.0)
    base_architecture(args)


register(
    MODEL,
    {
        MODEL: base_architecture,
        f"{MODEL}_wikitext103": wikitext103_architecture,
        f"{MODEL}_char": char_architecture,
    },
)
