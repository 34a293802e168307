"""What the norms of a model are told before the trainer computes an update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from norm_plugin.models.norm_model import NormModel
from norm_plugin.norms.base.statistics import BatchStatisticsNorm


def loss_scale(optimizer: Any, like: Tensor) -> float | Tensor:
    """The factor that ``optimizer.backward`` multiplies the loss with."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else scaler.scale(torch.ones((), device=like.device))


def tell_norms(model: nn.Module, optimizer: Any, update_num: int) -> None:
    """Let every norm with batch statistics know the factor in gradients, and the model the updates.

    ``FairseqTask.train_step`` tells the model the updates too; not every other task does.
    """
    norms = [module for module in model.modules() if isinstance(module, BatchStatisticsNorm)]
    if norms:
        scale = loss_scale(optimizer, norms[0].weight)
        for norm in norms:
            norm.loss_scale = scale
    for module in model.modules():
        if isinstance(module, NormModel):
            module.set_num_updates(update_num)
