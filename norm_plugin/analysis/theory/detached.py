"""Detached statistics.

**Claim** (Xu et al. 2019, AdaNorm, Theorem 1). With g the gradient by the output of the norm,
`g_bar` and `D(g)` its mean and variance over the channels: the derivative of mu makes the mean of
the gradient by the input 0, which is `g_bar / sigma` without it. The derivative of sigma makes its
variance at most `D(g) / sigma^2`, which it equals without it.

**Method.** x and g are taken from each norm of the encoder of the full model. Each of the four
norms gets them in float64. A statement holds if it is met to 1e-9 at all positions. The mean is
off in units of the root mean square of g / sigma, and the variance in units of `D(g) / sigma^2`.
"""

# The theorem follows from the formulas in norm_plugin/norms/detach_norm.py:
#
#     layernorm-simple   mean(dL/dx) = 0              D(dL/dx) <= D(g) / sigma^2
#     detachnorm         mean(dL/dx) = g_bar / sigma  D(dL/dx) =  D(g) / sigma^2
#     detachnorm-mean    mean(dL/dx) = g_bar / sigma  D(dL/dx) <= D(g) / sigma^2
#     detachnorm-std     mean(dL/dx) = 0              D(dL/dx) =  D(g) / sigma^2

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from norm_plugin.analysis.figures import style
from norm_plugin.analysis.theory.claim import Claim, Options, Row, groups, like_first, verdict
from norm_plugin.analysis.theory.stacks import encoder_activations
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


def measure(options: Options, placement: str) -> Iterator[Row]:
    """Margins at each norm of the encoder of a full model; of main placements only."""
    for batches in options.main_batches_of(placement):
        for seed in options.seeds_of(placement):
            model = options.model(placement, batches, seed)
            for one in encoder_activations(model, batches, seed):
                for name in FORMS:
                    error, ratio = margins(name, one.x, one.g)
                    yield {
                        "tokens": batches.kind,
                        "placement": placement,
                        "seed": seed,
                        "site": one.site,
                        "norm": name,
                        "positions": error.numel(),
                        "mean_error": float(error.max()),
                        "variance_excess": float(ratio.max() - 1),
                        "variance_error": float((ratio - 1).abs().max()),
                        "variance_ratio": float(ratio.mean()),
                        "least_variance_ratio": float(ratio.min()),
                    }


def verdicts(frame: pd.DataFrame) -> Iterator[Row]:
    """Whether every equality and inequality holds up to rounding, and with what margin."""
    for norm, some in groups(frame, "norm"):
        form = FORMS[norm]
        positions = some["positions"].sum()
        row = {"norm": norm, "positions": f"{positions:,}"}
        error = some["mean_error"].max()
        stated = f"mean = {'g_bar / sigma' if form.keeps_mean else '0'}"
        yield {**row, **verdict(stated, f"off by {error:.1e}", error <= ROUNDING)}
        off = some["variance_error" if form.keeps_variance else "variance_excess"].max()
        mean = (some["variance_ratio"] * some["positions"]).sum() / positions
        least, most = some["least_variance_ratio"].min(), 1 + some["variance_excess"].max()
        yield {
            **row,
            **verdict(
                f"variance {'=' if form.keeps_variance else '<='} D(g) / sigma^2",
                f"off by {off:.1e}" if form.keeps_variance else f"{most:.6f} at most",
                off <= ROUNDING,
            ),
            "mean ratio": f"{mean:.4f}",
            "least": f"{least:.4f}",
            "most": f"{most:.4f}",
        }


def plot(frame: pd.DataFrame, axes: Any) -> None:
    """The mean variance ratio by site, a line a norm, of the first placement and tokens."""
    first = frame.iloc[0]
    shown = like_first(frame, "tokens", "placement")
    for place, (norm, some) in enumerate(groups(shown, "norm")):
        ratios = some.groupby("site", sort=False)["variance_ratio"].mean()
        axes.plot(range(len(ratios)), ratios, **style(place), label=norm)
    axes.set_xlabel(f"norm of the encoder, from below ({first['placement']})")
    axes.set_ylabel("D(dL/dx) sigma^2 / D(g)")
    axes.legend(loc="lower right", fontsize=8)


CLAIM = Claim(
    name="detached",
    place=7,
    text=__doc__,
    caption="Variance of the gradient by the input of the norm, as a share of D(g) / sigma^2.",
    case=("placement", "norm", "tokens"),
    measure=measure,
    verdicts=verdicts,
    plot=plot,
)
