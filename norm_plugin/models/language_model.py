"""The model ``norm_transformer_lm``: fairseq's decoder-only Transformer with a chosen norm."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar
from unittest import mock

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model, transformer_lm
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import DictConfig, open_dict

from norm_plugin.declarations.flags import PLACEMENT, flag_of
from norm_plugin.models.config import NormConfig
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.segments import TASK
from norm_plugin.models.stacks import NormTransformerDecoder


@register_model("norm_transformer_lm")
class NormTransformerLanguageModel(NormModel, TransformerLanguageModel):
    """fairseq's language model; with ``--norm-type layernorm`` it is the stock model.

    Attributes:
        refused: why a flag of fairseq's language models does not apply here, by key.
    """

    sides = ("decoder",)
    tasks: ClassVar[tuple[str, ...]] = ("language_modeling", TASK)
    stock_settings: ClassVar[type[FairseqDataclass]] = TransformerLanguageModelConfig
    decoder_type: ClassVar[type[NormTransformerDecoder]] = NormTransformerDecoder
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("scale_fc", "scale_attn", "scale_heads", "scale_resids"),
            f"it adds norms of fairseq's own; for NormFormer, give {flag_of(PLACEMENT)} normformer",
        ),
        "base_layers": "it adds layers with norms of fairseq's own",
    }

    @classmethod
    def build_model(cls, args: argparse.Namespace | DictConfig, task: Any) -> Any:
        """Build as :meth:`NormModel.build_model`; ValueError also for flags that do not apply."""
        for key, reason in cls.refused.items():
            if getattr(args, key, None):
                raise ValueError(f"{flag_of(key)} is not possible in this model: {reason}; drop it")
        with open_dict(args) if isinstance(args, DictConfig) else contextlib.nullcontext():
            args.max_target_positions = positions(args, task)
        return super().build_model(args, task)

    @classmethod
    def build_planned(cls, cfg: NormConfig, task: Any) -> Any:
        # fairseq's build_model names the class, and has no hook for another one
        with mock.patch.object(transformer_lm, "TransformerDecoder", cls.decoder_type):
            model: Any = super(NormModel, cls).build_model(cfg, task)
        model.cfg = cfg
        return model


def positions(settings: Any, task: Any) -> int:
    """Return the longest input: ``--max-target-positions``, else ``--tokens-per-sample``.

    On a command line, the model's settings contain both; in YAML they are settings of the task.
    """
    for owner in (settings, getattr(task, "args", None), getattr(task, "cfg", None)):
        for key in ("max_target_positions", "tokens_per_sample"):
            if (given := getattr(owner, key, None)) is not None:
                return int(given)
    return transformer_lm.DEFAULT_MAX_TARGET_POSITIONS
