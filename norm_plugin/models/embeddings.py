"""Word embeddings of equal length: ``--norm-embedding fixnorm``.

FixNorm (Nguyen and Salazar 2019, arXiv 1910.05895) replaces each word embedding e by

    g e / ||e||

on the input of both stacks and in the output layer, whether these share their embeddings or not.
g is a constant: sqrt(d) on the input, by which every Transformer multiplies its embeddings (1 with
``--no-scale-embedding``), and 1 in the output layer, where the gain of the decoder's last norm
scales the logits.

The paper's text was not read. The authors' code (tnq177/transformers_without_tears, model.py) was
read, and has these constants. It draws the embeddings uniformly within 0.01; here they are drawn by
fairseq. The row of the padding is 0, stays 0 and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FIXNORM = "fixnorm"
TINY = 1e-12  # far below the length of any row other than 0


def unit_length(e: Tensor) -> Tensor:
    """Return e / ||e|| over the last dimension, (..., d), in the dtype of ``e``; 0 for zeros."""
    wide = torch.promote_types(e.dtype, torch.float32)
    length = torch.linalg.vector_norm(e, dim=-1, keepdim=True, dtype=wide)
    return (e / length.clamp(min=TINY) * (length > 0)).to(e.dtype)


class UnitEmbedding(nn.Embedding):
    """An embedding whose vectors have length 1; name and values of the weight do not change."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of ``tokens``, (...), as (..., d)."""
        return unit_length(super().forward(tokens))


class UnitLinear(nn.Linear):
    """An output layer whose rows have length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (..., words), of ``x``, (..., d)."""
        return functional.linear(x, unit_length(self.weight), self.bias)


def fix_embedding(embedding: nn.Embedding) -> UnitEmbedding:
    """Return ``embedding`` with vectors of length 1, sharing its weight."""
    fixed = UnitEmbedding(
        embedding.num_embeddings,
        embedding.embedding_dim,
        embedding.padding_idx,
        _weight=embedding.weight,
    )
    fixed.weight = embedding.weight
    return fixed


def fix_output_layer(output: nn.Linear) -> UnitLinear:
    """Return the output layer ``output`` with rows of length 1, sharing its weight."""
    with torch.device("meta"):  # no random numbers for weights that are replaced
        fixed = UnitLinear(output.in_features, output.out_features, bias=output.bias is not None)
    fixed.weight, fixed.bias = output.weight, output.bias
    return fixed


def check_embedding(settings: object, embedding: str) -> None:
    """Raise ValueError if the embeddings or the output layer are not a single matrix."""
    for key in ("adaptive_input", "adaptive_softmax_cutoff", "character_embeddings"):
        value: Any = getattr(settings, key, None)
        if embedding == FIXNORM and value:
            raise ValueError(
                f"{key} is {value}, but --norm-embedding fixnorm needs embeddings in one matrix: "
                "drop one of the two flags"
            )
