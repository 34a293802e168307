"""The architectures: fairseq's own, each also with its placement in the name.

Every architecture that fairseq registers for its models ``transformer`` and ``transformer_lm`` has
one here with ``norm_`` before its name, which is the same model with the norms of this plugin;
``..._preln`` and ``..._postln`` are the same with the placement fixed. One of each model is of this
plugin.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from fairseq import utils
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    MODEL_REGISTRY,
    register_model_architecture,
)
from fairseq.models import transformer_lm as stock_lm
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import OmegaConf

# Importing a model registers it, which its architectures need
from norm_plugin.models import language_model as language_model
from norm_plugin.models import translation as translation
from norm_plugin.models.config import check_keys, flatten
from norm_plugin.models.plan import LAYERNORM
from norm_plugin.models.settle import apply_placement, settle


def set_missing(args: Any, **values: Any) -> None:
    """Set those of ``values`` that ``args`` lacks."""
    for name, value in values.items():
        setattr(args, name, getattr(args, name, value))


def set_size(args: Any, side: str, **sizes: int) -> None:
    """Set those ``sizes`` of a stack that ``args`` lacks: ``embed_dim``, ``layers`` and so on."""
    set_missing(args, **{f"{side}_{name}": size for name, size in sizes.items()})


def multi30k_tiny(args: Any) -> None:
    """Set Transformer-Tiny of Wu et al. 2021: 4+4 layers, 128 channels, FFN 256, 4 heads.

    fairseq's ``transformer_tiny`` is another model: 2+2 layers, 64 channels, FFN 64, 2 heads.
    """
    for side in ("encoder", "decoder"):
        set_size(args, side, embed_dim=128, ffn_embed_dim=256, layers=4, attention_heads=4)
    stock.base_architecture(args)


def lm_char(args: Any) -> None:
    """Set a model of characters for a CPU: 6 layers, 128 channels, FFN 512, 4 heads, no dropout.

    As in nanoGPT (its ``model.py``): GELU, learned positions, dropout after the embeddings, in the
    attention and after each branch, and the output projection shares the weights of the embeddings.
    The placement is pre-norm. The initial weights are fairseq's; ``--norm-init nanogpt`` with
    ``--no-scale-embedding`` draws nanoGPT's.
    """
    set_size(args, "decoder", embed_dim=128, ffn_embed_dim=512, layers=6, attention_heads=4)
    set_missing(
        args,
        activation_fn="gelu",
        decoder_learned_pos=True,
        dropout=0.0,
        share_decoder_input_output_embed=True,
    )
    stock_lm.base_lm_architecture(args)


def lm_defaults(args: Any) -> None:
    """Set the defaults of fairseq's ``transformer_lm``, which has a dataclass and no function.

    The functions of its other architectures also leave some settings to the dataclass.
    """
    for field in dataclasses.fields(stock_lm.TransformerLanguageModelConfig):
        if not str(field.default).startswith("${"):  # a setting of the task
            set_missing(args, **{field.name: field.default})


def complete_lm(fill_defaults: Callable[[Any], None], args: Any) -> None:
    """Call the function of an architecture, then set what it leaves to fairseq's defaults."""
    fill_defaults(args)
    lm_defaults(args)


def stock_architectures(model: str) -> dict[str, Callable[[Any], None]]:
    """Return the functions of fairseq's architectures of ``model``, by the names of ours."""
    names = ARCH_MODEL_INV_REGISTRY[model]
    return {f"norm_{name}": ARCH_CONFIG_REGISTRY[name] for name in names}


SUFFIXES = {"": "", "_preln": "pre", "_postln": "post"}


def fill_in(args: Any, fill_defaults: Callable[[Any], None]) -> None:
    """Let ``fill_defaults`` complete a Namespace, or the ``model`` node of a YAML file.

    Such a function calls ``getattr(args, name, default)``, for which a node of omegaconf 2.0
    returns None if it lacks the name, so a Namespace replaces the node. fairseq's trainer reads
    ``base_layers`` from the node itself in that way.
    """
    if not OmegaConf.is_config(args):
        fill_defaults(args)
        return
    given: Any = OmegaConf.to_container(args, resolve=True)
    values = argparse.Namespace(**{**OF_THE_TRAINER, **given})
    fill_defaults(values)
    for name, value in vars(values).items():
        setattr(args, name, value)


OF_THE_TRAINER = {"base_layers": 0}
"""A setting that fairseq's trainer reads from every model."""


def register(model: str, architectures: Mapping[str, Callable[[Any], None]]) -> None:
    """Register architectures of ``model``, each also with its placement in the name.

    Args:
        architectures: by name, a function that completes settings, like fairseq's own.
    """
    for name, fill_defaults in architectures.items():
        for suffix, placement in SUFFIXES.items():
            architecture = functools.partial(_complete, model, fill_defaults, placement)
            register_model_architecture(model, name + suffix)(architecture)


def _complete(model: str, fill_defaults: Callable[[Any], None], placement: str, args: Any) -> None:
    """Complete the settings of an architecture, which may fix the placement, and check them."""
    cls = MODEL_REGISTRY[model]
    if OmegaConf.is_config(args):
        stock_keys = argparse.Namespace(**OF_THE_TRAINER)
        fill_defaults(stock_keys)
        flatten(args)
        check_keys(args, {*vars(stock_keys), *cls.extra_yaml_keys()}, cls.stock_settings)
    for key in (f"{side}_layers_to_keep" for side in cls.sides):
        kept = getattr(args, key, None)
        if kept is not None and not isinstance(kept, str):  # fairseq's flag is a list
            setattr(args, key, ",".join(map(str, kept if isinstance(kept, Iterable) else [kept])))
    apply_placement(args, placement, cls.sides)
    keys = [f"{side}_normalize_before" for side in cls.sides]
    given = {key: value for key in keys if (value := getattr(args, key, None)) is not None}
    fill_in(args, fill_defaults)
    for key, value in given.items():  # fairseq's language models overwrite it
        setattr(args, key, value)
    if getattr(args, "norm_type", None) is None:
        args.norm_type = LAYERNORM
    if getattr(args, "bf16", False) and utils.xm is None and torch.cuda.is_available():
        # fairseq takes --bf16 of a command line for --tpu --bf16, which needs torch_xla
        args.tpu = False
    # here, so that a wrong flag stops the command before it creates anything
    settle(args, cls.sides, complete=True)


register(
    "norm_transformer",
    {**stock_architectures("transformer"), "norm_transformer_multi30k_tiny": multi30k_tiny},
)
register(
    "norm_transformer_lm",
    {
        name: functools.partial(complete_lm, fill_defaults)
        for name, fill_defaults in {
            **stock_architectures("transformer_lm"),
            "norm_transformer_lm": lm_defaults,
            "norm_transformer_lm_char": lm_char,
        }.items()
    },
)
