"""What is recorded about a norm and a layer, as formulas over the real positions of a batch.

u is the tensor whose batch statistics a norm takes: its input x, (n, C), after RMS pre-scaling if
it has one. g = gamma * dL/dy. Per channel, over the n real positions V:

    mu_B = mean_V u,    sigma_B^2 = mean_V (u - mu_B)^2,    psi_B^2 = mean_V u^2

PowerNorm (Shen et al. 2020), with the average Euclidean norm ||v|| / C of its Figure 2:

    Figures 2 and 4   distance_mean = ||mu_B - mu|| / C, and likewise for sigma_B^2 and psi_B^2,
                      with the running statistics before the batch
    Figures 3 and 4   g_mu     = ||mean_V(g) / sigma_B|| / C
                      g_sigma2 = ||mean_V(g (u - mu_B) / sigma_B) / sigma_B|| / C
                      g_psi2   = ||mean_V(g u / psi_B) / psi_B|| / C
    Figure 7          gamma_over_psi = gamma / psi_B, per channel

The three of Figures 3 and 4 are the root mean squares over V of the terms that the statistics add
to dL/du, up to eps. The paper prints the terms but no formula for their norms: dividing by C as in
Figure 2 is our choice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Measures = dict[str, Tensor]
"""Measurements by their names in the record: a number, (), or quantiles over channels at
:data:`LEVELS`."""
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class Moments(NamedTuple):
    """mu_B, sigma_B^2 and psi_B^2 of a batch, (C,) each."""

    mean: Tensor
    variance: Tensor
    square: Tensor


def real_rows(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the real positions of ``x``, (..., C), as (n, C) in float32 or float64."""
    rows = x.detach().flatten(0, -2) if valid is None else x.detach()[valid]
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def moments(u: Tensor) -> Moments:
    """Return the batch statistics of ``u``, (n, C)."""
    mean = u.mean(dim=0)
    variance = (u - mean).square().mean(dim=0)
    return Moments(mean, variance, variance + mean.square())


def quantiles(v: Tensor) -> Tensor:
    """Return the quantiles of ``v``, (C,), over channels at each of :data:`LEVELS`."""
    return torch.quantile(v, v.new_tensor(LEVELS))


def average_norm(v: Tensor) -> Tensor:
    """Return ||v|| / C for ``v``, (C,)."""
    return torch.linalg.vector_norm(v) / v.numel()


def root_mean_square(x: Tensor) -> Tensor:
    """Return the root mean square over all values of ``x``, ()."""
    return torch.linalg.vector_norm(x) / x.numel() ** 0.5


def statistics_measures(batch: Moments, running: dict[str, Tensor]) -> Measures:
    """Return batch and running statistics and their distance. ``running``: by name, (C,) each."""
    measures = {}
    for name, value in batch._asdict().items():
        measures[f"batch_{name}"] = quantiles(value)
        if name in running:
            measures[f"running_{name}"] = quantiles(running[name].to(value.dtype))
            measures[f"distance_{name}"] = average_norm(value - running[name])
    return measures


def gradient_parts(g: Tensor, u: Tensor, batch: Moments, eps: float) -> Measures:
    """Return what the statistics contribute to the gradient. g, u: (n, C)."""
    sigma, psi = (batch.variance + eps).sqrt(), (batch.square + eps).sqrt()
    g_mean, gu_mean = g.mean(dim=0), (g * u).mean(dim=0)
    centered = (gu_mean - batch.mean * g_mean) / sigma
    return {
        "g_mu": average_norm(g_mean / sigma),
        "g_sigma2": average_norm(centered / sigma),
        "g_psi2": average_norm(gu_mean / psi / psi),
    }
