"""One forward and backward pass through a stack in the simplified setting, looked at by layer.

The loss is that of Xiong et al. 2020, section 3.3: cross-entropy of a softmax over W^emb x, here
with labels that are uniform and independent of the input, averaged over the positions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from norm_plugin.analysis.theory.batches import Batches
from norm_plugin.analysis.theory.gradients import layer_gradients, total_loss
from norm_plugin.analysis.theory.models import random_output_matrix, simplified
from norm_plugin.analysis.theory.sums import squared_lengths, watch_sums


class StackPass(NamedTuple):
    """What a pass shows at the n real positions of its batch.

    Attributes:
        outputs: |x|^2 / d of the embeddings and of the output of each layer, (L + 1, n).
        sums: by branch, |x|^2 / d of what the norm on its sum gets, (L, n); only where every layer
            has such a norm.
        gradients: Frobenius norm of the gradient of the mean loss by W^2 of each layer, L numbers.
    """

    outputs: Tensor
    sums: Mapping[str, Tensor]
    gradients: list[float]


@functools.cache
def stack_pass(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches, seed: int
) -> StackPass:
    """The pass of a fresh stack over the batch of ``seed``, which draws the weights too."""
    torch.manual_seed(seed)
    words = batches.source_words
    stack = simplified(placement, norm_type, layers, dim, batches)
    for parameter in stack.parameters():
        parameter.requires_grad_(False)
    w2s = [layer.fc2.requires_grad_() for layer in stack.layers.children()]
    tokens = batches.draw(seed).source
    real = tokens.ne(words.pad()).t()
    watched = watch_sums(stack)
    given = stack(tokens, None, return_all_hiddens=True)
    logits = given["encoder_out"][0] @ random_output_matrix(len(words), dim).t()
    loss = total_loss(logits, uniform_labels(tokens, words), words.pad()) / real.sum()
    return StackPass(
        squared_lengths(given["encoder_states"], real, dim),
        {
            branch: squared_lengths(xs, real, dim)
            for branch, xs in watched.items()
            if len(xs) == layers
        },
        layer_gradients(w2s, loss),
    )


def uniform_labels(tokens: Tensor, words: Any) -> Tensor:
    """A label for each real position of ``tokens``, (B, T); padding elsewhere. (T, B)."""
    labels = torch.randint(words.nspecial, len(words), tokens.shape)
    return torch.where(tokens.eq(words.pad()), tokens, labels).t()
