"""The model ``norm_masked_lm``: fairseq's RoBERTa with a chosen norm at every site of its encoder.

fairseq's task ``masked_lm`` pre-trains it, and ``sentence_prediction`` fine-tunes it. The head that
predicts the masked words has a LayerNorm of its own, which is not replaced.
"""

from __future__ import annotations

import argparse
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta import model as stock
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import nn

from norm_plugin.declarations.flags import EMBEDDING, flag_of
from norm_plugin.models.architectures import register, set_size, stock_architectures
from norm_plugin.models.config import NormConfig
from norm_plugin.models.embeddings import FIXNORM
from norm_plugin.models.initialization import initialize, initialize_embeddings
from norm_plugin.models.layers import PlannedLayer
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.stacks import NormTransformerEncoder

MODEL = "norm_masked_lm"


class NormRobertaEncoder(RobertaEncoder):
    """RoBERTa's encoder and head, around a :class:`NormTransformerEncoder`."""

    def build_encoder(self, args: NormConfig, dictionary: Any, embed_tokens: nn.Embedding) -> Any:
        encoder = NormTransformerEncoder(args, dictionary, embed_tokens)
        encoder.apply(init_bert_params)
        return encoder


@register_model(MODEL)
class NormMaskedLanguageModel(NormModel, RobertaModel):
    """RoBERTa; with ``--norm-type layernorm`` it is the stock model."""

    sides = ("encoder",)
    tasks = ("masked_lm", "sentence_prediction")
    stock_settings = FairseqDataclass  # RoBERTa has none; its flags are added below

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the flags of fairseq's RoBERTa and those of the norms."""
        super().add_args(parser)
        RobertaModel.add_args(parser)

    @classmethod
    def extra_yaml_keys(cls) -> set[str]:
        parser = argparse.ArgumentParser(add_help=False)
        RobertaModel.add_args(parser)
        return {action.dest for action in parser._actions} | {"tokens_per_sample"}

    @classmethod
    def build_planned(cls, cfg: NormConfig, task: Any) -> Any:
        if cfg.plan.embedding == FIXNORM:  # on the input alone it would be half of FixNorm
            raise ValueError(
                f"{flag_of(EMBEDDING)} {FIXNORM} is not possible in {MODEL}, whose output layer "
                "it does not reach: drop the flag"
            )
        if getattr(cfg, "max_positions", None) is None:  # as in fairseq's build_model
            given = getattr(cfg, "tokens_per_sample", None)
            cfg.max_positions = task.max_positions() if given is None else given
        model = cls(cfg, NormRobertaEncoder(cfg, task.source_dictionary))
        model.cfg = cfg
        # By --norm-init, after RoBERTa has drawn its own weights
        stack, init = model.stack("encoder"), cfg.plan.initialization["encoder"]
        layers = [layer for layer in stack.modules() if isinstance(layer, PlannedLayer)]
        place = layers[0].placement.place
        initialize_embeddings(stack.embed_tokens, stack.embed_positions, init, place)
        for layer in layers:
            initialize(layer, init, layer.placement.place)
        return model

    def stack(self, side: str) -> Any:
        return self.encoder.sentence_encoder

    def maps_after_encoder(self) -> list[tuple[nn.Module, str]]:
        heads = self.classification_heads.values()
        return [(head, "dense") for head in (self.encoder.lm_head, *heads)]


def tiny(args: Any) -> None:
    """Set 2 layers, 64 channels, FFN 128, 2 heads: to try pre-training and fine-tuning."""
    set_size(args, "encoder", embed_dim=64, ffn_embed_dim=128, layers=2, attention_heads=2)
    stock.base_architecture(args)


register(
    MODEL,
    {MODEL: stock.base_architecture, **stock_architectures("roberta"), f"{MODEL}_tiny": tiny},
)
