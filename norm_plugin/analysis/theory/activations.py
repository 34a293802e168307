"""Inputs of norms and the gradients of their outputs, in a model that is about to be trained."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from norm_plugin.analysis.theory.batches import Batch, Batches
from norm_plugin.analysis.theory.claim import Options
from norm_plugin.analysis.theory.gradients import total_loss
from norm_plugin.analysis.theory.models import full
from norm_plugin.models.measures import real_rows
from norm_plugin.norms import Norm

LAYERS = 6
"""L of the full model whose norms are looked at one by one."""


class Activations(NamedTuple):
    """What a norm of the encoder sees at the real positions of a batch.

    Attributes:
        site: its path in the model.
        x: its input, (n, C), in float64.
        g: the gradient of the mean loss by its output, (n, C), in float64.
    """

    site: str
    x: Tensor
    g: Tensor


def fresh_model(options: Options, placement: str, batches: Batches, seed: int) -> nn.Module:
    """A full model with the weights of ``seed``."""
    torch.manual_seed(seed)
    return full(placement, options.norm_type, LAYERS, options.full_dim, batches)


def encoder_activations(model: Any, batches: Batches, seed: int) -> list[Activations]:
    """Of each norm of the encoder, from below, in one pass over the batch of ``seed``."""
    batch, seen, handles = batches.draw(seed), dict[str, dict[str, Tensor]](), []
    for path, module in model.encoder.named_modules():
        if isinstance(module, Norm):
            keep = partial(_keep, seen.setdefault(f"encoder.{path}", {}))
            handles.append(module.register_forward_hook(keep))
    try:
        mean_loss(model, batch, batches.target_words.pad()).backward()
    finally:
        for handle in handles:
            handle.remove()
    valid = batch.source.ne(batches.source_words.pad()).t()
    return [
        Activations(path, *(real_rows(one[key], valid).double() for key in ("x", "g")))
        for path, one in seen.items()
    ]


def mean_loss(model: Any, batch: Batch, pad: int) -> Tensor:
    """The cross-entropy of a batch in nats a target token."""
    logits, _ = model(batch.source, None, batch.previous)
    return total_loss(logits, batch.target, pad) / batch.target.ne(pad).sum()


def _keep(
    seen: dict[str, Tensor], norm: nn.Module, inputs: tuple[Any, ...], output: Tensor
) -> None:
    """The hook after a norm; its gradient arrives later."""
    seen["x"] = inputs[0].detach()
    output.register_hook(partial(seen.__setitem__, "g"))
