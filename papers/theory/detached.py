"""Detached statistics.

Xu et al. 2019 (AdaNorm), Theorem 1. With g the gradient by the output of the norm, `g_bar` and
`D(g)` its mean and variance over the channels, and dx the gradient by its input:

    layernorm-simple   mean(dx) = 0              D(dx) <= D(g) / sigma^2
    detachnorm         mean(dx) = g_bar / sigma  D(dx) =  D(g) / sigma^2
    detachnorm-mean    mean(dx) = g_bar / sigma  D(dx) <= D(g) / sigma^2
    detachnorm-std     mean(dx) = 0              D(dx) =  D(g) / sigma^2

It follows from the formulas in ``norm_plugin/norms/detach_norm.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.norms import build_norm
from papers.theory.claim import ROUNDING, Options, Row, cases, verdict
from papers.theory.models import through_norm

CASE = ("placement", "norm", "tokens")


class Form(NamedTuple):
    """What the theorem states for a norm.

    Attributes:
        keeps_mean: the mean of dx is g_bar / sigma; else it is 0.
        keeps_variance: the variance of dx is D(g) / sigma^2; else it is at most that.
    """

    keeps_mean: bool
    keeps_variance: bool


FORMS = {
    "layernorm-simple": Form(keeps_mean=False, keeps_variance=False),
    "detachnorm": Form(keeps_mean=True, keeps_variance=True),
    "detachnorm-mean": Form(keeps_mean=True, keeps_variance=False),
    "detachnorm-std": Form(keeps_mean=False, keeps_variance=True),
}
"""What the gradient of each norm keeps, by the name of the norm."""


def margins(norm_type: str, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the gradient of one of :data:`FORMS` is from the stated one. x, g: (n, C).

    Returns:
        |mean(dx) - the stated mean|, in units of sqrt(mean(g^2)) / sigma, and D(dx) sigma^2 / D(g),
        (n,) each.
    """
    norm: Any = build_norm(norm_type, x.size(-1)).to(x.dtype)
    dx, _ = through_norm(norm, x, g)
    sigma = (x.var(dim=-1, correction=0) + norm.eps).sqrt()
    stated = g.mean(dim=-1) / sigma if FORMS[norm_type].keeps_mean else torch.zeros_like(sigma)
    unit = g.square().mean(dim=-1).sqrt() / sigma
    ratio = dx.var(dim=-1, correction=0) * sigma.square() / g.var(dim=-1, correction=0)
    return (dx.mean(dim=-1) - stated).abs() / unit, ratio


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Measure margins at each norm of the encoder of a full model, for main placements only."""
    for where, at in options.activations(placement):
        for norm in FORMS:
            error, ratio = margins(norm, at.x, at.g)
            yield {
                **where,
                "norm": norm,
                "positions": error.numel(),
                "mean_error": float(error.max()),
                "variance_excess": float(ratio.max() - 1),
                "variance_error": float((ratio - 1).abs().max()),
                "variance_ratio": float(ratio.mean()),
                "least_variance_ratio": float(ratio.min()),
            }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Judge whether every equality and inequality holds up to rounding, and with what margin."""
    for row, some in cases(frame, "norm"):
        form = FORMS[row["norm"]]
        positions = some["positions"].sum()
        row["positions"] = f"{positions:,}"
        error = some["mean_error"].max()
        stated = f"mean = {'g_bar / sigma' if form.keeps_mean else '0'}"
        yield {**row, **verdict(stated, f"off by {error:.1e}", error <= ROUNDING)}
        off = some["variance_error" if form.keeps_variance else "variance_excess"].max()
        mean = (some["variance_ratio"] * some["positions"]).sum() / positions
        least, most = some["least_variance_ratio"].min(), 1 + some["variance_excess"].max()
        stated = f"variance {'=' if form.keeps_variance else '<='} D(g) / sigma^2"
        measured = f"off by {off:.1e}" if form.keeps_variance else f"{most:.6f} at most"
        row |= verdict(stated, measured, off <= ROUNDING)
        yield {**row, "mean ratio": f"{mean:.4f}", "least": f"{least:.4f}", "most": f"{most:.4f}"}
