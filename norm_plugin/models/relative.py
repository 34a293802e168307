"""What Transformer-XL and the tensorized Transformer share: positions, start and output layer.

Both add vectors u and v, which all layers share, to the queries, and encode positions as sinusoids

    R_k = (sin(k w_1), ..., sin(k w_(d/2)), cos(k w_1), ..., cos(k w_(d/2))),
    w_i = 10000^(-2 (i - 1) / d)

in a map of each layer. The output layer shares the weights of the embeddings, which are multiplied
by sqrt(d), and has a bias of its own. At the start every matrix, u and v are normal of standard
deviation 0.02, biases are 0, and gains of norms have noise of that deviation on their own start.
Under pre-norm there is no norm after the stack, unless ``--final-norm`` adds it.

The source is the code of Transformer-XL's authors (kimiyoung/transformer-xl), on which that of the
tensorized Transformer is based. Its initialization, in train.py, is quoted from notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any

import torch
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from torch import Tensor, nn

from norm_plugin.models.architectures import lm_defaults, set_missing
from norm_plugin.models.config import NormConfig
from norm_plugin.models.settle import chosen_placement
from norm_plugin.models.stacks import NormTransformerDecoder
from norm_plugin.norms import Norm

STD = 0.02
Settings = Mapping[str, tuple[Any, Any, str]]
"""The type of each flag, its default and its help, by key."""
FINAL_NORM: Settings = {
    "final_norm": (bool, False, "add a norm after the last layer under placement pre"),
}


def settings_class(name: str, settings: Settings) -> Any:
    """Return a dataclass of fairseq's settings of a language model and of ``settings``.

    This is not a class statement because fairseq reads the types of fields, which would be strings.
    """
    fields = [
        (key, kind, field(default=default, metadata={"help": text}))
        for key, (kind, default, text) in settings.items()
    ]
    return make_dataclass(name, fields, bases=(TransformerLanguageModelConfig,))


def sinusoids(distances: Tensor, dim: int) -> Tensor:
    """Return R, (K, dim), for ``distances``, (K,), in their dtype."""
    half = torch.arange(0, dim, 2, dtype=distances.dtype, device=distances.device)
    angles = torch.outer(distances, 10000 ** (-half / dim))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def draw(module: nn.Module) -> None:
    """Draw the initial weights of a linear map or of an embedding."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])


class RelativeDecoder(NormTransformerDecoder):
    """A stack whose attentions share u and v.

    A subclass names its layers and computes the features.

    Attributes:
        content_bias, position_bias: u and v, (heads, channels of a head).
    """

    def __init__(self, cfg: NormConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        attention: Any = next(self.layers.children()).self_attn
        shape = attention.num_heads, attention.head_dim
        self.content_bias = nn.Parameter(torch.empty(shape).normal_(std=STD))
        self.position_bias = nn.Parameter(torch.empty(shape).normal_(std=STD))
        # last, so that all other weights are the same with any norm
        for norm in (module for module in self.modules() if isinstance(module, Norm)):
            for name, gain in norm.named_parameters(recurse=False):
                if name == "weight":
                    gain.data.add_(torch.empty_like(gain).normal_(std=STD))

    def build_output_projection(self, cfg: NormConfig, *args: Any) -> None:
        """Build the output layer as fairseq does, with a bias and these initial weights."""
        for name, module in self.named_children():
            if name != "layers":  # those have been drawn
                module.apply(draw)
        super().build_output_projection(cfg, *args)
        if self.adaptive_softmax is not None:
            self.adaptive_softmax.apply(draw)
            return
        output = self.output_projection
        if not self.share_input_output_embed:
            draw(output)
        output.bias = nn.Parameter(output.weight.new_zeros(output.out_features))

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of ``tokens``, (B, T), before norm and dropout, (B, T, C)."""
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        return x if self.project_in_dim is None else self.project_in_dim(x)

    def begin(self, x: Tensor) -> Tensor:
        """Return the input of the first layer, (T, B, C), from the embeddings x, (B, T, C)."""
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        dropped: Tensor = self.dropout_module(x)
        return dropped.transpose(0, 1)

    def end(self, x: Tensor) -> Tensor:
        """Return the features, (B, T, C), from the output x of the final norm, (T, B, C)."""
        x = self.dropout_module(x).transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)

    def positions(self, distances: Tensor, like: Tensor) -> Tensor:
        """Return the sinusoids of distances, (K,), after dropout, (K, C), in ``like``'s dtype."""
        wide = torch.promote_types(like.dtype, torch.float32)
        dropped: Tensor = self.dropout_module(
            sinusoids(distances.to(wide), self.embed_dim).to(like.dtype)
        )
        return dropped

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: Any | None = None,
        features_only: bool = False,
        **more: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the logits, (B, T, words), or with ``features_only`` the features, (B, T, C).

        Args:
            prev_output_tokens: (B, T).
            incremental_state: for step-by-step decoding, where the output has T = 1.
            more: passed to ``extract_features``.
        """
        x, extra = self.extract_features(
            prev_output_tokens, incremental_state=incremental_state, **more
        )
        return (x if features_only else self.output_layer(x)), extra


def set_defaults(args: Any, settings: Settings) -> None:
    """Complete the settings of such a model; those of its architecture take precedence."""
    set_missing(args, **{name: default for name, (_, default, _) in settings.items()})
    set_missing(args, decoder_embed_dim=512, dropout=0.1, share_decoder_input_output_embed=True)
    width = args.decoder_embed_dim
    set_missing(args, decoder_input_dim=width, decoder_output_dim=width)
    set_missing(args, activation_dropout=args.dropout)
    args.no_token_positional_embeddings = True
    pre = chosen_placement(args, ("decoder",))["decoder"] == "pre"
    if args.final_norm and not pre:
        raise ValueError(
            "--final-norm adds the norm after the stack that this model lacks under placement pre, "
            "but the placement is another one: drop --final-norm"
        )
    if pre and not args.final_norm:
        args.no_decoder_final_norm = True
    lm_defaults(args)
