"""fairseq's Transformer layers with the norm of each site put in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from norm_plugin.models.initialization import INITIALIZATIONS
from norm_plugin.models.sites import (
    DECODER_LAYER_SITES,
    ENCODER_LAYER_SITES,
    Site,
    build_site,
)


class PaddingMask:
    """The padding mask of the batch in work, handed to norms by a forward pre-hook.

    fairseq's layers call ``norm(x)``; the hook makes that ``norm(x, mask, batch_first)``, so
    nothing of their forward has to be written again. The mask is always (B, T).
    """

    batch_first = False  # x is (T, B, C) in fairseq's layers, and at the end of its stacks

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.ignoring = False

    @contextmanager
    def holding(self, mask: Tensor | None) -> Iterator[None]:
        """Hand out ``mask``, (B, T) and True at padding, or None, within this context."""
        self.mask = mask
        try:
            yield
        finally:
            self.mask = None

    def __call__(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """The hook: append the mask, and how x lies, to the inputs of ``norm``."""
        mask = self.mask
        if self.ignoring:
            batch, time = (0, 1) if self.batch_first else (1, 0)
            x = inputs[0]
            mask = x.new_ones(x.size(batch), x.size(time), dtype=torch.bool)
        return (*inputs, mask, self.batch_first)


class EmbeddingPaddingMask(PaddingMask):
    """The same for the norm of the embeddings, the one place where fairseq's x is (B, T, C)."""

    batch_first = True


@contextmanager
def ignoring_every_position(model: nn.Module) -> Iterator[None]:
    """Within this context every position is padding to the norms of ``model``."""
    masks: list[Any] = [module.padding for module in model.modules() if hasattr(module, "padding")]
    masks += [m.embedding_padding for m in model.modules() if hasattr(m, "embedding_padding")]
    before = [mask.ignoring for mask in masks]  # True within another such context
    for mask in masks:
        mask.ignoring = True
    try:
        yield
    finally:
        for mask, ignoring in zip(masks, before):
            mask.ignoring = ignoring


def install_norms(
    module: nn.Module, cfg: Any, sites: Iterable[Site], dim: int, padding: PaddingMask
) -> None:
    """Replace the LayerNorms that fairseq built in ``module`` by the norms of ``sites``.

    It draws no random numbers, so every norm starts from the same weights elsewhere. A site
    that the model lacks (None, as the final norm under post-norm) stays absent.
    """
    for site in sites:
        if getattr(module, site.attribute, None) is not None:
            norm = build_site(cfg, site, dim)
            norm.register_forward_pre_hook(padding)
            setattr(module, site.attribute, norm)


class NormTransformerEncoderLayer(TransformerEncoderLayerBase):
    """An encoder layer whose norms are those of the configuration."""

    def __init__(self, cfg: Any, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.padding = PaddingMask()
        install_norms(self, cfg, ENCODER_LAYER_SITES, self.embed_dim, self.padding)
        INITIALIZATIONS[cfg.norm_init](self)
        # Some versions of fairseq run a loaded post-norm layer as one fused kernel, which knows
        # LayerNorm only and would pass these norms over
        self.can_use_fastpath = False

    def forward(
        self, x: Tensor, encoder_padding_mask: Tensor | None, *args: Any, **kwargs: Any
    ) -> Any:
        """As in fairseq; x: (T, B, C), encoder_padding_mask: (B, T) or None."""
        with self.padding.holding(encoder_padding_mask):
            return super().forward(x, encoder_padding_mask, *args, **kwargs)


class NormTransformerDecoderLayer(TransformerDecoderLayerBase):
    """A decoder layer whose norms are those of the configuration."""

    def __init__(self, cfg: Any, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.padding = PaddingMask()
        install_norms(self, cfg, DECODER_LAYER_SITES, self.embed_dim, self.padding)
        INITIALIZATIONS[cfg.norm_init](self)

    def forward(
        self,
        x: Tensor,
        *args: Any,
        self_attn_padding_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in fairseq; x: (T, B, C), self_attn_padding_mask: (B, T) or None."""
        with self.padding.holding(self_attn_padding_mask):
            return super().forward(
                x, *args, self_attn_padding_mask=self_attn_padding_mask, **kwargs
            )


def wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """Activation checkpointing and FSDP around a layer, as the flags of the run ask."""
    checkpoint = cfg.checkpoint_activations
    if checkpoint:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # A checkpointed layer is always wrapped, whatever its size
    return fsdp_wrap(layer, min_num_params=0 if checkpoint else cfg.min_params_to_wrap)
