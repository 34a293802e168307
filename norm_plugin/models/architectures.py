"""The architectures: fairseq's own, each also with its placement in the name.

Every architecture that fairseq registers for its model ``transformer`` has one here with ``norm_``
before its name, which is the same model with the norms of this plugin; ``..._preln`` and
``..._postln`` are the same with the placement fixed. One is of this plugin.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    register_model_architecture,
)
from fairseq.models.transformer import transformer_legacy as stock
from omegaconf import OmegaConf

# Importing the model registers it, which its architectures need
from norm_plugin.models import translation as translation
from norm_plugin.models.config import check_keys
from norm_plugin.models.placement_choice import apply_placement
from norm_plugin.models.plan import LAYERNORM, make_plan
from norm_plugin.models.sites import SIDES
from norm_plugin.models.warmup import default_warmup


def multi30k_tiny(args: Any) -> None:
    """Transformer-Tiny of Wu et al. 2021: 4+4 layers, 128 channels, FFN 256, 4 heads.

    It is another one than fairseq's ``transformer_tiny``: 2+2 layers, 64 channels, FFN 64, 2 heads.
    """
    for side in ("encoder", "decoder"):
        for name, value in (
            ("embed_dim", 128),
            ("ffn_embed_dim", 256),
            ("layers", 4),
            ("attention_heads", 4),
        ):
            key = f"{side}_{name}"
            setattr(args, key, getattr(args, key, value))
    stock.base_architecture(args)


STOCK_ARCHITECTURES: dict[str, Callable[[Any], None]] = {
    f"norm_{name}": ARCH_CONFIG_REGISTRY[name] for name in ARCH_MODEL_INV_REGISTRY["transformer"]
}
ARCHITECTURES = {**STOCK_ARCHITECTURES, "norm_transformer_multi30k_tiny": multi30k_tiny}
SUFFIXES = {"": "", "_preln": "pre", "_postln": "post"}


def fill_in(args: Any, fill_defaults: Callable[[Any], None]) -> None:
    """Let ``fill_defaults`` complete a Namespace, or the ``model`` node of a YAML file.

    Such a function asks ``getattr(args, name, default)``, and a node of omegaconf 2.0 answers
    None for a name that it lacks, so a Namespace stands in for it. fairseq's trainer asks the
    node itself for ``base_layers`` in that way.
    """
    if not OmegaConf.is_config(args):
        fill_defaults(args)
        return
    given: Any = OmegaConf.to_container(args, resolve=True)
    values = argparse.Namespace(**{"base_layers": 0, **given})
    fill_defaults(values)
    for name, value in vars(values).items():
        setattr(args, name, value)


def register(
    model: str,
    name: str,
    fill_defaults: Callable[[Any], None],
    placement: str = "",
    sides: Sequence[str] = SIDES,
) -> None:
    """Register one architecture; fairseq calls it on flags and on YAML alike.

    Args:
        model: the registered name of its model.
        fill_defaults: a stock architecture function.
        placement: what its name fixes, or nothing.
        sides: the stacks that the model has.
    """

    def architecture(args: Any) -> None:
        if OmegaConf.is_config(args):
            stock_keys = argparse.Namespace()
            fill_defaults(stock_keys)
            check_keys(args, vars(stock_keys))
        apply_placement(args, placement, sides)
        fill_in(args, fill_defaults)
        if getattr(args, "norm_type", None) is None:
            args.norm_type = LAYERNORM
        default_warmup(args, sides)
        make_plan(args, sides)  # so that a wrong flag stops the command before it makes anything

    register_model_architecture(model, name)(architecture)


for _name, _fill_defaults in ARCHITECTURES.items():
    for _suffix, _placement in SUFFIXES.items():
        register("norm_transformer", _name + _suffix, _fill_defaults, _placement)
