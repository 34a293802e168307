"""Singular values of the embeddings of a checkpoint (PowerNorm paper, Figure 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from norm_plugin.checkpoints.files import State

EMBEDDING = "embed_tokens.weight"


def spectra_of(state: State) -> list[dict[str, Any]]:
    """Return the singular values of each distinct embedding of a checkpoint, in falling order.

    Returns:
        dictionaries with ``side``, the encoder, the decoder or ``shared``; ``shape``, words and
        channels; and ``values`` with five significant digits. Empty for a model without embeddings.
    """
    embeddings = {
        name.split(".")[0]: weight
        for name, weight in state["model"].items()
        if name.endswith(EMBEDDING)
    }
    weights = list(embeddings.values())
    if len(weights) > 1 and all(torch.equal(weights[0], other) for other in weights):
        embeddings = {"shared": weights[0]}
    spectra = []
    for side, weight in embeddings.items():
        values = np.linalg.svd(weight.double().numpy(), compute_uv=False)
        rounded = [float(f"{value:.5g}") for value in values]
        spectra.append({"side": side, "shape": tuple(weight.shape), "values": rounded})
    return spectra
