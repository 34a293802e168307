"""The gain over psi_B.

Shen et al. 2020 (PowerNorm), Lemma 1 with Assumption 1 and Figure 7. With X and Y the input and the
output of PN-V in a channel, x_hat = X / psi_B and n positions, the chain rule gives

    |dL/dX|^2 = gamma^2 / psi_B^2 (|dL/dY|^2 - <dL/dY, x_hat>^2 / n)

Assumption 1 puts the gradient of the network without norms, by X, in the place of dL/dY. Then the
loss has a smaller Lipschitz constant with PN-V where gamma <= psi_B, which the paper finds in every
channel of every layer after training.

X is the input after RMS pre-scaling, if there is one. The pre-scaling gives each position a mean
square of 1 over its channels, so the mean of psi_B^2 over the channels is 1 as well. With gamma =
1, as at the start, gamma <= psi_B in every channel would then need psi_B = 1 in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.norms import build_norm
from norm_plugin.norms.base.rms_prescale import rms_prescale
from papers.theory.claim import ROUNDING, Options, Row, cases, verdict
from papers.theory.models import through_norm
from papers.theory.trained import power_norm_sites

EPS = 1e-5
PN_V = "powernorm-v"
CASE = ("model", "norm", "layer_scale", "tokens", "placement")


def ratios(x: Tensor, dy: Tensor, gain: Tensor, groups: int) -> tuple[Tensor, float]:
    """Return gamma / psi_B of each channel, and the error of the identity of Lemma 1.

    Args:
        x: the input before the RMS pre-scaling, (n, C), in float64.
        dy: the gradient by the output, (n, C), in float64.
        gain: gamma, (C,).
        groups: groups of the RMS pre-scaling; 0: none.

    Returns:
        (C,), and the largest error as a share of gamma^2 |dL/dY|^2 / psi_B^2.
    """
    scaled = rms_prescale(x, groups, EPS)
    options: dict[str, Any] = {"layer_scale_groups": 0, "eps": 0.0}
    norm: Any = build_norm(PN_V, x.size(-1), **options).double().train()
    with torch.no_grad():
        norm.weight.copy_(gain)
    dx, _ = through_norm(norm, scaled, dy)
    psi = scaled.square().mean(dim=0).sqrt()
    length = dy.square().sum(dim=0)
    product = (dy * scaled / psi).sum(dim=0).square() / len(x)
    unit = (gain / psi).square() * length
    error = (dx.square().sum(dim=0) - (gain / psi).square() * (length - product)).abs() / unit
    return gain.abs() / psi, float(error.max())


def summary(x: Tensor, dy: Tensor, gain: Tensor, groups: int) -> Row:
    """Return the numbers of one norm in one batch."""
    ratio, error = ratios(x, dy, gain, groups)
    return {
        "least": float(ratio.min()),
        "mean": float(ratio.mean()),
        "largest": float(ratio.max()),
        "channels_above": float((ratio > 1).double().mean()),
        "identity_error": error,
    }


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure at each norm of the encoder at the start, where gamma is 1, for main placements."""
    for where, at in options.activations(placement):
        for groups in (0, 1):
            row: Row = {"model": "start", "norm": PN_V, "layer_scale": groups, **where}
            yield {**row, **summary(at.x, at.g, torch.ones_like(at.x[0]), groups)}


def measure_once(options: Options) -> Iterator[Row]:
    """Measure at each norm of the encoder of each PowerNorm checkpoint."""
    for path in options.checkpoints:
        for row, norm, at in power_norm_sites(path, options.data):
            gamma = norm.weight.detach().double()
            yield {**row, **summary(at.x, at.g, gamma, norm.layer_scale_groups)}


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether the identity holds, and gamma <= psi_B in every channel."""
    for row, some in cases(frame, *CASE):
        error, largest = some["identity_error"].max(), some["largest"].max()
        exact = error <= ROUNDING
        yield {**row, **verdict("Lemma 1's identity", f"off by {error:.1e} at most", exact)}
        above = some["channels_above"].mean()
        text = f"{largest:.3f} at most"
        yield {
            **row,
            **verdict("gamma / psi_B <= 1", text, largest <= 1),
            "channels above 1": f"{above:.1%}",
            "mean": f"{some['mean'].mean():.3f}",
        }


def tables(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return gamma / psi_B at every norm of the trained models, or else of those at the start."""
    trained = frame[frame["model"] != "start"]
    shown = trained if len(trained) else frame
    by = [*CASE, "site"]
    sites = shown.groupby(by, sort=False).agg(
        **{"least": ("least", "min"), "mean": ("mean", "mean"), "largest": ("largest", "max")},
        **{"channels above 1": ("channels_above", "mean")},
    )
    texts = dict.fromkeys(("least", "mean", "largest"), "{:.3f}".format)
    for column, form in {**texts, "channels above 1": "{:.1%}".format}.items():
        sites[column] = sites[column].map(form)
    return [sites.reset_index()]
