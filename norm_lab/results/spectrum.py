"""Singular values of the embeddings of a checkpoint (PowerNorm paper, Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from norm_plugin.checkpoints.files import State, check_finite, load_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.resuming import settings_of

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class Spectrum:
    """The singular values of one embedding.

    Attributes:
        checkpoint: its path.
        norm: the norm of the run; ``stock`` for a model of fairseq's own.
        side: ``encoder``, ``decoder``, or ``shared``.
        shape: number of words and of channels.
        values: (channels,), in falling order.
    """

    checkpoint: Path
    norm: str
    side: str
    shape: tuple[int, int]
    values: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def normalized(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the values divided by the largest, (channels,)."""
        return self.values / self.values[0]

    @property
    def stable_rank(self) -> float:
        """Return sum s^2 / max s^2, the effective number of directions, from 1 to channels."""
        return float(np.sum(self.normalized**2))


def read_spectra(path: Path) -> list[Spectrum]:
    """Return the spectrum of each distinct embedding of a checkpoint.

    Raises:
        CommandError: it cannot be read, has no embedding, or is not finite.
    """
    state = load_checkpoint(path)
    check_finite(path, state["model"])
    spectra = spectra_of(state, path)
    if not spectra:
        raise CommandError(f"{path} has no entry that ends in {EMBEDDING}")
    return spectra


def spectra_of(state: State, path: Path) -> list[Spectrum]:
    """Return the spectra of a checkpoint's state; empty for a model without embeddings."""
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
        words, channels = weight.shape
        values = np.linalg.svd(weight.double().numpy(), compute_uv=False)  # in falling order
        spectra.append(Spectrum(path, norm_of(state), side, (words, channels), values))
    return spectra


def norm_of(state: State) -> str:
    """Return the norm of the run that wrote a checkpoint, according to its settings."""
    return str((settings_of(state) or {}).get("norm_type") or "stock")
