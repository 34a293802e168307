"""Gradients of the second matrix of feed-forward networks, W^2 in the paper, ``fc2`` in fairseq.

The gradient of the loss of position i by the last layer's W^2 is an outer product, delta_i h_i^T:
h_i goes into W^2, and delta_i is the gradient of that loss by what comes out. No later part of the
model mixes positions, if its norms do not. So one backward pass through the end of the model gives

    of positions    mean_i |delta_i| |h_i|, the mean of the Frobenius norms of all positions
    of the mean     |mean_i delta_i h_i^T|_F, the Frobenius norm of the mean over a batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Logits = Callable[[], Tensor]
"""Runs a model; returns its logits, (T, B, V) or (B, T, V)."""


class LastLayer(NamedTuple):
    """Two norms of the gradient of the last W^2; see above."""

    of_positions: float
    of_mean: float


class _Cut:
    """A hook of W^2 that ends the graph there, and keeps its input h and its output."""

    def __call__(self, linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.h = inputs[0].detach()
        self.output = output.detach().requires_grad_()
        return self.output


def last_layer_gradient(w2: nn.Module, logits: Logits, labels: Tensor, pad: int) -> LastLayer:
    """The norms of the gradient of ``w2``, after which no module may mix positions.

    Args:
        w2: of the last layer.
        logits: runs the model.
        labels: as the logits without their last dimension; ``pad`` where there is no loss.
    """
    cut = _Cut()
    handle = w2.register_forward_hook(cut)
    try:
        loss = total_loss(logits(), labels, pad)
    finally:
        handle.remove()
    (delta,) = torch.autograd.grad(loss, cut.output)
    delta, h = delta.flatten(0, 1), cut.h.flatten(0, 1)
    count = labels.ne(pad).sum()
    norms = torch.linalg.vector_norm(delta, dim=-1) * torch.linalg.vector_norm(h, dim=-1)
    mean = torch.linalg.matrix_norm(delta.t() @ h / count)
    return LastLayer(float(norms.sum() / count), float(mean))


def layer_gradients(w2s: Sequence[Any], loss: Tensor) -> list[float]:
    """The Frobenius norm of the gradient of ``loss`` by the W^2 of each layer."""
    gradients = torch.autograd.grad(loss, [one.weight for one in w2s])
    return [float(torch.linalg.matrix_norm(one)) for one in gradients]


def total_loss(logits: Tensor, labels: Tensor, pad: int) -> Tensor:
    """The cross-entropy in nats, summed over the positions that have a label."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=pad, reduction="sum"
    )
