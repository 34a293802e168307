"""The model ``norm_transformer``: fairseq's Transformer with a chosen norm at every site."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerModelBase
from omegaconf import OmegaConf, open_dict
from torch import nn

from norm_plugin.kernels import AUTO, describe, resolve, set_kernels, there
from norm_plugin.models.config import KERNELS_FOUND, build_config, config_class
from norm_plugin.models.divergence import DivergenceWatch
from norm_plugin.models.logs import describe_forms, describe_plan
from norm_plugin.models.stacks import NormTransformerDecoder, NormTransformerEncoder
from norm_plugin.norms.base.statistics import BatchStatisticsNorm

logger = logging.getLogger(__name__)


@register_model("norm_transformer")
class NormTransformerModel(TransformerModelBase):
    """fairseq's Transformer; with ``--norm-type layernorm`` it is the stock model.

    It is registered without a dataclass: flags, architecture defaults and YAML all reach a
    model in both ``fairseq-train`` and ``fairseq-hydra-train`` only that way. fairseq then
    checks no key of the model, so :func:`build_config` does.
    """

    watch: DivergenceWatch | None = None
    updates_done = 0

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """The flags of fairseq's Transformer and those that the norms declare."""
        gen_parser_from_dataclass(parser, config_class()(), delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> NormTransformerModel:
        """Build the model from flags or YAML; raises ValueError for a setting that is wrong."""
        cfg = build_config(args)
        plan, kernels = cfg.plan, resolve(cfg.plan.kernels)
        with open_dict(args) if OmegaConf.is_config(args) else contextlib.nullcontext():
            for name, value in {**plan.stored(), KERNELS_FOUND: describe(kernels)}.items():
                setattr(args, name, value)
        logger.info(describe_plan(plan))
        if leaking := plan.sites_that_see_the_future():
            logger.warning(
                "in training each target position sees its future through the batch statistics "
                "of %s",
                ", ".join(site.name for site in leaking),
            )
        model = super().build_model(cfg, task)
        if plan.kernels != AUTO:  # which the norms have as they are built
            set_kernels(model, plan.kernels)
        forms = describe_forms(model, plan, there(kernels))
        logger.info("norm kernels: %s; %s", describe(kernels), forms)
        if plan.nan_check:
            model.watch = DivergenceWatch(model)
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in fairseq; in training it raises FloatingPointError where the run diverges."""
        output = super().forward(*args, **kwargs)
        if self.watch is not None:
            self.watch.check(self.updates_done + 1)
        return output

    def set_num_updates(self, num_updates: int) -> None:
        """As in fairseq; it says so when a run begins anew with statistics of another."""
        counts = [
            norm.updates_counted
            for norm in self.modules()
            if isinstance(norm, BatchStatisticsNorm) and not norm.counts_forwards
        ]
        if counts and num_updates < counts[0]:
            logger.info(
                "training begins anew at update %d: the norms keep the running statistics of %d "
                "updates, and their warm-up starts again",
                num_updates,
                counts[0] + 1,  # the count is that of before the last update
            )
        self.updates_done = num_updates
        super().set_num_updates(num_updates)

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Embedding) -> Any:
        return NormTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> Any:
        return NormTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )
