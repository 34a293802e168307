"""The model ``norm_transformer_xl``: a decoder with a memory of earlier segments, with any norm.

Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
arXiv 1901.02860. A layer attends to the T positions of its segment and to M positions before them,
whose states were kept from earlier segments without gradient. With z the input of the attention,
before its norm, at the M + T positions, and y = norm(z) if the placement has that norm, else z, the
score of query i and key j of a head is, for 0 <= i - j,

    ((q_i + u) . k_j + (q_i + v) . W_r R_(i - j)) / sqrt(d_head),  q, k, v' = W_q y, W_k y, W_v y

u and v are vectors for each head (``content_bias`` and ``position_bias``), and W_r is a map of each
layer; see ``relative.py`` for R, the initialization and the output layer. ``--clamp-len`` bounds
i - j. With ``--same-length`` every query sees its last ``--mem-len`` keys, itself included. No map
of the attention has a bias.

The text of the paper was not read for this file, which follows the authors' code
(kimiyoung/transformer-xl, pytorch/mem_transformer.py, its default attention). ``--norm-init
xavier``, the default, keeps its initialization; the other values change it as they change
fairseq's.

The memory stores z, so it is the input of a layer under post-norm and pre-norm, as in that code,
and what the attention reads under any other placement. If the model is told the ``segment`` (see
``segments.py``), the memory continues from one segment to the next, separately for training and
evaluation, starts empty at segment 0, and is stored in the checkpoints of a run within an epoch.

Batch statistics: a norm on the input of the attention, as under pre-norm, is applied to memory and
segment together, as in that code, and each of the M + T positions counts in its statistics. Every
other norm sees the T positions of the segment alone.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import register_model
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

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
from norm_plugin.models.segments import TASK, Memory, before_segment, joined, number_segments
from norm_plugin.norms.base.workers import gathered_rows, own_rows
from norm_plugin.placements import INPUT, STREAM

MODEL = "norm_transformer_xl"
SETTINGS: Settings = {
    "mem_len": (int, 0, "number of positions of earlier segments to keep"),
    "clamp_len": (int, -1, "largest distance; longer ones count as this one; -1: no limit"),
    "same_length": (bool, False, "each position sees only the last --mem-len positions"),
    **FINAL_NORM,
}
"""The flags of this model in addition to those of fairseq's language model."""


def by_distance(x: Tensor) -> Tensor:
    """Rearrange x, (..., T, K), from query i and distance K - 1 - c in column c to query and key.

    Row i is shifted left by T - 1 - i: the distance in column j is then K - T + i - j. The values
    shifted in from the right are meaningless; those keys are later than the query.
    """
    *_, rows, columns = x.shape
    padded = nn.functional.pad(x, (1, 0)).flatten(-2)
    return padded[..., rows:].unflatten(-1, (rows, columns))


class RelativeAttention(MultiheadAttention):
    """Attention over memory and segment, by content and by distance.

    Attributes:
        r_proj: W_r.
    """

    def __init__(self, embed_dim: int, heads: int, **kwargs: Any) -> None:
        super().__init__(embed_dim, heads, bias=False, self_attention=True, **kwargs)
        self.r_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(
        self, y: Tensor, shared: tuple[Tensor, Tensor, Tensor], attn_mask: Tensor
    ) -> Tensor:
        """Return the output for the segment, (T, B, C).

        Args:
            y: memory and segment, (M + T, B, C).
            shared: R from the longest distance to 0, (M + T, C), u and v, (heads, C / heads).
            attn_mask: (T, M + T), True where a query does not attend to a key.
        """
        positions, u, v = shared
        q = self._heads(self.q_proj(y[-attn_mask.size(0) :]))
        k, values = self._heads(self.k_proj(y)), self._heads(self.v_proj(y))
        r = self.r_proj(positions).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)
        scores = (q + u.unsqueeze(1)) @ k.transpose(-2, -1)
        scores = scores + by_distance((q + v.unsqueeze(1)) @ r)
        scores = (scores * self.scaling).masked_fill(attn_mask, float("-inf"))
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = self.dropout_module(scores.softmax(-1, dtype=wide).to(scores.dtype))
        output: Tensor = self.out_proj((weights @ values).permute(2, 0, 1, 3).flatten(-2))
        return output

    def _heads(self, x: Tensor) -> Tensor:
        """Return x, (K, B, C), split into heads, (B, heads, K, C / heads)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)


class TransformerXLLayer(NormTransformerDecoderLayer):
    """A decoder layer whose attention also sees the memory."""

    self_attn: RelativeAttention

    def build_self_attention(self, embed_dim: int, cfg: NormConfig, **kwargs: Any) -> Any:
        return RelativeAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def install_norms(self, cfg: NormConfig, layer: LayerPlan) -> None:
        self.apply(draw)
        super().install_norms(cfg, layer)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        positions: Tensor,
        content_bias: Tensor,
        position_bias: Tensor,
        mask: Tensor,
        padding_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the new stream, and z at the positions of the segment for the memory, (T, B, C).

        Args:
            x: (T, B, C), or with several streams concatenated.
            memory: z at the earlier positions, (M, B, C).
            positions: R from the longest distance to 0, (M + T, C).
            content_bias, position_bias: u and v, (heads, C / heads).
            mask: (T, M + T), True where a query does not attend to a key.
            padding_mask: (B, T).
        """
        norm, place = self.norms(padding_mask), self.placement
        x, z = place.read(norm("self", STREAM, place.begin(x)), "self", norm)
        y = place.enter(self._norm_with_memory(memory, z, padding_mask), "self")
        f = self.self_attn(y, (positions, content_bias, position_bias), mask)
        x = self.join("self", x, f, norm)

        x, y = self.branch_input("ffn", x, norm)
        x = self.join("ffn", x, self.feed_forward(y, norm), norm)
        return place.end(x), z.detach()

    def _norm_with_memory(self, memory: Tensor, z: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Apply the norm on the attention's input to memory and segment, (M + T, B, C).

        No position of the memory is padding.
        """
        if padding_mask is not None:
            padding_mask = nn.functional.pad(padding_mask, (len(memory), 0))
        return LayerNorms(self, padding_mask)("self", INPUT, torch.cat([memory, z]))


class TransformerXLDecoder(RelativeDecoder):
    """A stack of :class:`TransformerXLLayer`.

    Attributes:
        memories: the memory in training (True) and in evaluation (False).
    """

    layer_type = TransformerXLLayer

    def __init__(self, cfg: NormConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        settings: Any = cfg
        self.mem_len, self.clamp_len = settings.mem_len, settings.clamp_len
        self.same_length = settings.same_length
        self.memories: dict[bool, Memory] = {}

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: Any | None = None,
        segment: int | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the features, (B, T, C).

        Args:
            prev_output_tokens: (B, T).
            incremental_state: for step-by-step decoding: only the last token is computed, and the
                memory is what was decoded before.
            segment: the number of these tokens in a text that is given in consecutive segments.
                None: they are computed without memory, and none is kept.
        """
        step = incremental_state is not None
        tokens = prev_output_tokens[:, -1:] if step else prev_output_tokens
        x = self.embedded(tokens)
        memory = self._decoded(incremental_state) if step else self._recalled(segment, tokens)
        memory = memory or [x.new_zeros(0, len(tokens), self.embed_dim)] * len(self.layers)
        padding = tokens.eq(self.padding_idx)
        padding_mask = padding if padding.any() else None
        states = []
        with self.padding.holding(padding):
            x = self.begin(x)
            shared = self._relative(x, memory[0].size(0))
            for layer, of_layer in zip(self.layers, memory):
                x, z = layer(x, of_layer, *shared, padding_mask)
                states.append(z)
            if self.layer_norm is not None:
                x = self.layer_norm(x)
        if step:
            length = self.mem_len + self.max_target_positions
            kept = [joined(*pair, length) for pair in zip(memory, states)]
            by_layer = {str(layer): state for layer, state in enumerate(kept)}
            self.set_incremental_state(incremental_state, "memory", by_layer)
        elif segment is not None and self.mem_len > 0:
            kept = [joined(*pair, self.mem_len) for pair in zip(memory, states)]
            self.memories[self.training] = Memory(segment, kept)
        return self.end(x), {"attn": [None]}

    def _relative(self, x: Tensor, before: int) -> tuple[Tensor, ...]:
        """Return R, u, v and the mask for T positions of x, (T, B, C), after ``before`` others."""
        keys = torch.arange(before + x.size(0), device=x.device)
        distances = keys.flip(0)
        if self.clamp_len > 0:
            distances = distances.clamp(max=self.clamp_len)
        distance = keys[before:].unsqueeze(1) - keys
        mask = distance < 0
        if self.same_length:
            mask |= distance >= self.mem_len
        return self.positions(distances, x), self.content_bias, self.position_bias, mask

    def _recalled(self, segment: int | None, tokens: Tensor) -> list[Tensor]:
        """Return the states before ``segment`` per layer; empty if there are none."""
        if not segment or self.mem_len == 0:
            return []
        states = before_segment(self.memories.get(self.training), segment, len(tokens))
        return [state.to(self.content_bias) for state in states]

    def _decoded(self, incremental_state: Any) -> list[Tensor]:
        """Return the states of the tokens decoded so far, per layer; empty at the first step."""
        kept = self.get_incremental_state(incremental_state, "memory") or {}
        return list(kept.values())

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Reorder the states for beam search, as in fairseq; new_order: (B,)."""
        kept = self.get_incremental_state(incremental_state, "memory") or {}
        ordered = {layer: state.index_select(1, new_order) for layer, state in kept.items()}
        if ordered:
            self.set_incremental_state(incremental_state, "memory", ordered)


@register_model(MODEL)
class NormTransformerXL(NormTransformerLanguageModel):
    """Transformer-XL with a chosen norm at every site."""

    tasks = (TASK,)
    stock_settings = settings_class("TransformerXLConfig", SETTINGS)
    decoder_type = TransformerXLDecoder
    decoder: TransformerXLDecoder
    refused = {
        **NormTransformerLanguageModel.refused,
        "decoder_layerdrop": "a dropped layer would have no memory for the next segment",
        "decoder_learned_pos": "its positions are relative",
        "decoder_xformers_att_config": "it has its own attention",
    }

    @classmethod
    def build_model(cls, args: Any, task: Any) -> Any:
        if args.mem_len < 0 or (args.same_length and args.mem_len == 0):
            least = "1 or more with --same-length" if args.same_length else "0 or more"
            raise ValueError(f"--mem-len is {args.mem_len}; it must be {least}")
        model = super().build_model(args, task)
        number_segments(task)
        return model

    def training_state(self) -> dict[str, Any]:
        """Return the memory of the training text, with the rows of all workers."""
        memory = self.decoder.memories.get(True)
        if memory is None:
            return {}
        return {
            "segment": memory.segment,
            "states": [gathered_rows(state, dim=1).cpu() for state in memory.states],
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        states = [own_rows(memory, dim=1) for memory in state["states"]]
        self.decoder.memories[True] = Memory(state["segment"], states)


def base_architecture(args: Any) -> None:
    """Set the sizes of Dai et al. on enwik8: 12 layers of 512, 8 heads, FFN 2048, memory 512."""
    set_missing(args, mem_len=512, decoder_layers=12)
    set_defaults(args, SETTINGS)


def char_architecture(args: Any) -> None:
    """Set a model of characters for a CPU: that of ``norm_transformer_lm_char``, memory 64."""
    set_size(args, "decoder", embed_dim=128, ffn_embed_dim=512, layers=6, attention_heads=4)
    set_missing(args, dropout=0.0, mem_len=64)
    base_architecture(args)


register(MODEL, {MODEL: base_architecture, f"{MODEL}_char": char_architecture})
