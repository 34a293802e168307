"""The models that the claims are measured on, built of the same parts as those that users train.

simplified
    The setting of Xiong et al. 2020, section 3.3: one stack of L layers with one head, all matrices
    d x d and Xavier normal, W_Q = W_K = 0, no biases, and inputs that are normal with variance 1. A
    placement with an initialization of its own keeps it.

full
    fairseq's Transformer as ``norm_transformer`` builds it: L encoder and L decoder layers, FFN of
    4 d, heads of 64 channels, sinusoidal positions, the initialization of ``--norm-init``, and
    decoder embeddings that are the output projection too. There is no dropout.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer.transformer_base import Embedding
from torch import Tensor, nn

from norm_plugin.analysis.theory.batches import Batches
from norm_plugin.models.config import build_config
from norm_plugin.models.initialization import XAVIER, initialize, of_placement
from norm_plugin.models.linear_maps import attention_projections, linear_maps
from norm_plugin.models.placement_choice import apply_placement
from norm_plugin.models.stacks import NormTransformerEncoder
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.models.warmup import default_warmup

HEAD_CHANNELS = 64
WARMUP_UPDATES = 4000
"""Of a norm that has a warm-up: at the first update it is within it."""


def simplified(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches
) -> NormTransformerEncoder:
    """A stack in the paper's simplified setting with fresh weights, in training mode; see above.

    Raises:
        ValueError: what the plan of a model refuses.
    """
    with torch.random.fork_rng(devices=[]):  # or a seed would draw other weights the first time
        stack = copy.deepcopy(_unused(placement, norm_type, layers, dim, batches))
    nn.init.normal_(stack.embed_tokens.weight, std=dim**-0.5)
    word = of_placement(placement)
    for layer in stack.layers.children():
        if word != XAVIER:
            initialize(layer, word, layer.placement.place)
        simplify(layer, keep_weights=word != XAVIER)
    return stack


@functools.lru_cache(maxsize=1)
def _unused(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches
) -> NormTransformerEncoder:
    """A stack for :func:`simplified`; to draw weights is most of what building one costs."""
    args = _settings(placement, norm_type, layers, dim, sides=("encoder",))
    args.encoder_ffn_embed_dim, args.encoder_attention_heads = dim, 1
    args.no_token_positional_embeddings = True
    cfg = build_config(args, ("encoder",))
    words = batches.source_words
    embedding = Embedding(len(words), dim, words.pad())
    return NormTransformerEncoder(cfg, words, embedding).train()


@torch.no_grad()
def simplify(layer: nn.Module, keep_weights: bool) -> None:
    """Xavier normal weights unless they are to be kept, W_Q = W_K = 0, and no biases."""
    for linear in linear_maps(layer):
        if not keep_weights:
            nn.init.xavier_normal_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    queries, keys, *_ = attention_projections(layer)
    for linear in (queries, keys):
        nn.init.zeros_(linear.weight)


def full(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches
) -> NormTransformerModel:
    """fairseq's Transformer with ``layers`` in each stack, in training mode; see above.

    Raises:
        ValueError: what the plan of a model refuses.
    """
    args = _settings(placement, norm_type, layers, dim, sides=("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        setattr(args, f"{side}_ffn_embed_dim", 4 * dim)
        setattr(args, f"{side}_attention_heads", max(1, dim // HEAD_CHANNELS))
    args.share_decoder_input_output_embed = True
    ARCH_CONFIG_REGISTRY["norm_transformer"](args)
    task = SimpleNamespace(
        source_dictionary=batches.source_words, target_dictionary=batches.target_words
    )
    model: Any = NormTransformerModel.build_model(args, task)
    return model.train()


def _settings(
    placement: str, norm_type: str, layers: int, dim: int, sides: tuple[str, ...]
) -> argparse.Namespace:
    """What both models have in common, in fairseq's flat names."""
    args = argparse.Namespace(norm_placement=placement, norm_type=norm_type)
    for side in sides:
        setattr(args, f"{side}_layers", layers)
        setattr(args, f"{side}_embed_dim", dim)
    args.dropout = args.attention_dropout = args.activation_dropout = 0.0
    args.warmup_updates = WARMUP_UPDATES
    apply_placement(args, sides=sides)
    default_warmup(args, sides)
    return args


def random_output_matrix(words: int, dim: int) -> Tensor:
    """W^emb of the softmax over words, normal with variance 1/d, (words, d)."""
    return torch.randn(words, dim) / math.sqrt(dim)
