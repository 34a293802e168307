"""Word embeddings of one length: ``--norm-embedding fixnorm``.

FixNorm (Nguyen and Salazar 2019, arXiv 1910.05895) replaces each word embedding e by

    g e / ||e||

on the input of both stacks and in the output layer, whether these share their embeddings or not.
g is a constant: sqrt(d) on the input, by which every Transformer multiplies its embeddings (1 with
``--no-scale-embedding``), and 1 in the output layer, where the gain of the decoder's last norm
scales the logits.

The paper's text was not read. The authors' code (tnq177/transformers_without_tears, model.py) was,
and has these constants. It draws the embeddings uniformly within 0.01; here they stay fairseq's.
The row of the padding is 0. It stays 0 and gets no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FIXNORM, PLAIN = "fixnorm", "none"
EMBEDDINGS = (PLAIN, FIXNORM)
"""The values of ``--norm-embedding``."""
TINY = 1e-12  # far below the length of any row that is not 0


def unit_length(e: Tensor) -> Tensor:
    """e / ||e|| over the last dimension, in the dtype of ``e``, (..., d); 0 for a row of zeros."""
    wide = torch.promote_types(e.dtype, torch.float32)
    length = torch.linalg.vector_norm(e, dim=-1, keepdim=True, dtype=wide)
    return (e / length.clamp(min=TINY) * (length > 0)).to(e.dtype)


class UnitEmbedding(nn.Embedding):
    """An embedding whose vectors have length 1; the weight keeps its name and its values."""

    def forward(self, tokens: Tensor) -> Tensor:
        """The embeddings of ``tokens``, (...) to (..., d)."""
        return unit_length(super().forward(tokens))


class UnitLinear(nn.Linear):
    """An output layer whose rows have length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """The logits of ``x``, (..., d) to (..., words)."""
        return functional.linear(x, unit_length(self.weight), self.bias)


def fix_embedding(embedding: nn.Embedding) -> UnitEmbedding:
    """``embedding`` with vectors of length 1; they share their weight."""
    fixed = UnitEmbedding(
        embedding.num_embeddings,
        embedding.embedding_dim,
        embedding.padding_idx,
        _weight=embedding.weight,
    )
    fixed.weight = embedding.weight
    return fixed


def fix_output_layer(output: nn.Linear) -> UnitLinear:
    """The output layer ``output`` with rows of length 1; they share their weight."""
    with torch.device("meta"):  # no random numbers for weights that are replaced
        fixed = UnitLinear(output.in_features, output.out_features, bias=output.bias is not None)
    fixed.weight, fixed.bias = output.weight, output.bias
    return fixed


def check_embedding(settings: object, embedding: str) -> None:
    """Raise ValueError for embeddings or an output layer that are not one matrix."""
    for key in ("adaptive_input", "adaptive_softmax_cutoff", "character_embeddings"):
        value: Any = getattr(settings, key, None)
        if embedding == FIXNORM and value:
            raise ValueError(
                f"--norm-embedding fixnorm needs embeddings in one matrix, but {key} is {value}: "
                "drop one of them"
            )
