"""Theorem 1 of the AdaNorm paper: what the derivatives of mu and sigma do to the gradient.

g = dL/dy is the gradient by the output of a norm without parameters, at one position, and dL/dx
that by its input. Bars are means over the channels, D variances. The theorem follows from the
formulas in ``norm_plugin/norms/detach_norm.py``:

    layernorm-simple   mean(dL/dx) = 0              D(dL/dx) <= D(g) / sigma^2
    detachnorm         mean(dL/dx) = g_bar / sigma  D(dL/dx) =  D(g) / sigma^2
    detachnorm-mean    mean(dL/dx) = g_bar / sigma  D(dL/dx) <= D(g) / sigma^2
    detachnorm-std     mean(dL/dx) = 0              D(dL/dx) =  D(g) / sigma^2
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.activations import encoder_activations, fresh_model
from norm_plugin.analysis.theory.claim import Claim, Findings, Options, Row, Table
from norm_plugin.analysis.theory.rows import group
from norm_plugin.norms import build_norm

ROUNDING = 1e-9
"""Far above what sums of some hundred float64 numbers are off, far below any real effect."""


class Form(NamedTuple):
    """What the theorem says of a norm.

    Attributes:
        keeps_mean: the mean of dL/dx is g_bar / sigma; else it is 0.
        keeps_variance: the variance of dL/dx is D(g) / sigma^2; else it is at most that.
    """

    keeps_mean: bool
    keeps_variance: bool


FORMS = {
    "layernorm-simple": Form(keeps_mean=False, keeps_variance=False),
    "detachnorm": Form(keeps_mean=True, keeps_variance=True),
    "detachnorm-mean": Form(keeps_mean=True, keeps_variance=False),
    "detachnorm-std": Form(keeps_mean=False, keeps_variance=True),
}
"""By the norm."""


class Margins(NamedTuple):
    """How far the gradient is from what the theorem says, (n,) each.

    Attributes:
        mean_error: |mean(dL/dx) - what is stated|, in units of sqrt(mean(g^2)) / sigma.
        variance_ratio: D(dL/dx) sigma^2 / D(g).
    """

    mean_error: Tensor
    variance_ratio: Tensor


def margins(norm_type: str, x: Tensor, g: Tensor) -> Margins:
    """Those of the norm ``norm_type``, one of :data:`FORMS`, at n positions. x, g: (n, C)."""
    norm: Any = build_norm(norm_type, x.size(-1)).to(x.dtype)
    leaf = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(norm(leaf), leaf, g)
    sigma = (x.var(dim=-1, correction=0) + norm.eps).sqrt()
    stated = g.mean(dim=-1) / sigma if FORMS[norm_type].keeps_mean else torch.zeros_like(sigma)
    unit = g.square().mean(dim=-1).sqrt() / sigma
    return Margins(
        (dx.mean(dim=-1) - stated).abs() / unit,
        dx.var(dim=-1, correction=0) * sigma.square() / g.var(dim=-1, correction=0),
    )


def measure(options: Options, placement: str) -> list[Row]:
    """Margins at each norm of the encoder of a full model; of main placements only."""
    rows: list[Row] = []
    for batches in options.batches_of(placement) if placement in options.main else []:
        for seed in options.seeds_of(placement):
            model = fresh_model(options, placement, batches, seed)
            where = {"tokens": batches.kind, "placement": placement, "seed": seed}
            rows += [
                {**where, "site": one.site, "norm": name, **_of(margins(name, one.x, one.g))}
                for one in encoder_activations(model, batches, seed)
                for name in FORMS
            ]
    return rows


def _of(found: Margins) -> Row:
    """The columns of a row."""
    return {
        "positions": found.mean_error.numel(),
        "mean_error": float(found.mean_error.max()),
        "variance_excess": float(found.variance_ratio.max() - 1),
        "variance_error": float((found.variance_ratio - 1).abs().max()),
        "variance_ratio": float(found.variance_ratio.mean()),
        "least_variance_ratio": float(found.variance_ratio.min()),
    }


def find(rows: list[Row]) -> Findings:
    """Whether every equality and inequality holds up to rounding, and with what margin."""
    sentences: list[str] = []
    table: list[tuple[str, ...]] = []
    for (norm,), some in group(rows, "norm").items():
        form = FORMS[norm]
        mean = max(row["mean_error"] for row in some)
        column = "variance_error" if form.keeps_variance else "variance_excess"
        variance = max(row[column] for row in some)
        positions = sum(row["positions"] for row in some)
        share = sum(row["variance_ratio"] * row["positions"] for row in some) / positions
        least = min(row["least_variance_ratio"] for row in some)
        holds = mean <= ROUNDING and variance <= ROUNDING
        sentences.append(
            f"`{norm}`: both statements {'hold' if holds else 'do not hold'} at all "
            f"{positions:,} positions. The mean is off by at most {mean:.1e}"
            + (
                f", the variance by {variance:.1e} of itself."
                if form.keeps_variance
                else f". The variance is {share:.4f} times D(g) / sigma^2 on average, "
                f"{least:.4f} at least and {1 + variance:.6f} at most."
            )
        )
        table.append(
            (
                norm,
                "g_bar / sigma" if form.keeps_mean else "0",
                f"{mean:.1e}",
                "= D(g) / sigma^2" if form.keeps_variance else "<= D(g) / sigma^2",
                f"{share:.4f}",
                f"{least:.4f}",
                f"{1 + max(row['variance_excess'] for row in some):.4f}",
            )
        )
    header = ("norm", "mean is", "off by", "variance is", "mean ratio", "least", "most")
    return Findings(sentences, [Table(header, table)])


def plot(rows: list[Row], axes: Any) -> None:
    """The mean variance ratio by site, a line a norm, of the first placement and tokens."""
    first = rows[0]
    shown = [row for row in rows if all(row[k] == first[k] for k in ("tokens", "placement"))]
    for place, ((norm,), some) in enumerate(group(shown, "norm").items()):
        sites = group(some, "site")
        ratios = [sum(row["variance_ratio"] for row in at) / len(at) for at in sites.values()]
        axes.plot(range(len(ratios)), ratios, **style(place), label=norm)
    axes.set_xlabel(f"norm of the encoder, from below ({first['placement']})")
    axes.set_ylabel("D(dL/dx) sigma^2 / D(g)")
    axes.legend(loc="lower right", fontsize=8)


CLAIM = Claim(
    name="detached",
    title="Detached statistics",
    source="Xu et al. 2019 (AdaNorm), Theorem 1",
    statement=(
        "With g the gradient by the output of the norm, `g_bar` and `D(g)` its mean and variance "
        "over the channels: the derivative of mu makes the mean of the gradient by the input 0, "
        "which is `g_bar / sigma` without it. The derivative of sigma makes its variance at most "
        "`D(g) / sigma^2`, which it equals without it.",
    ),
    method=(
        "x and g are taken from each norm of the encoder of the full model. Each of the four norms "
        "gets them in float64. A statement holds if it is met to 1e-9, in units of the root mean "
        "square of g / sigma for the mean.",
    ),
    caption="Variance of the gradient by the input of the norm, as a share of D(g) / sigma^2.",
    measure=measure,
    find=find,
    plot=plot,
)
